package headroom.suite;

import headroom.suite.INamed;
import headroom.suite.Pair;

/** What is seldom used. */
parcelable Packet {
    enum Kind { PLAIN, SEALED = 5 }
    parcelable Stamp { Kind kind = Kind.SEALED; long time; }
    union Content { byte[] bytes; Stamp stamp; IBinder object; }

    const int LIMIT = 1 << 4 | 3;
    int[4] fixed;
    int[2][3] matrix;
    String[2] labels = {"a", "b"};
    int[] defaults = {1, 2, LIMIT};
    Stamp stamp;
    Content content;
    Pair<int, String> pair;
    @nullable ParcelFileDescriptor file;
    ParcelFileDescriptor[] files;
    @nullable INamed named;
    @nullable INamed[] crowd;
    IBinder[] objects;
    @utf8InCpp String text;
    Kind[] kinds;
}
