package headroom.suite;

import headroom.suite.Medium;

/** A bit of everything. */
@RustDerive(Clone=true, PartialEq=true)
parcelable Point {
    int x;
    long y = 7;
    double z;
    boolean flag = true;
    String name;
    @nullable String nickname;
    int[] numbers;
    String[] words;
    Medium size = Medium.ONE;
}
