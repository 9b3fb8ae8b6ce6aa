package headroom.suite;

import headroom.suite.INamed;
import headroom.suite.IOneWay;
import headroom.suite.Packet;
import headroom.suite.Pair;
import headroom.suite.Point;
import headroom.suite.Tree;
import headroom.suite.Value;
import android.hardware.common.fmq.MQDescriptor;
import android.hardware.common.fmq.SynchronizedReadWrite;
import rsbinder.stream.StreamEndpoint;

/** What both ends may do asynchronously; codes are given by hand. */
interface ITasks {
    String echo(in String text) = 10;
    int sum(in int[] numbers) = 11;
    Point[] reverse(in Point[] points) = 12;
    Value echoValue(in Value value) = 13;
    Packet echoPacket(in Packet packet) = 14;
    Tree echoTree(in Tree tree) = 15;
    Pair<int, String> swap(in Pair<int, String> pair) = 16;
    int[2][3] transpose(in int[2][3] matrix) = 17;
    void fill(out int[4] four, inout String[] words) = 18;
    INamed named(in String name) = 20;
    /** Calls the next one, which has itself passed on. */
    int relay(in ITasks next, int times) = 21;
    void report(in IOneWay to, int count) = 23;
    String slowly(in String text, int milliseconds) = 30;
    void fail(int code) = 31;
    ParcelFileDescriptor pipeWith(in String content) = 32;
    ParcelFileDescriptor[] pipesWith(in String[] contents) = 33;
    /** Fills it. */
    void writeTo(in ParcelFileDescriptor file, in byte[] content) = 34;
    /** Counts up to it in the stream. */
    void count(in StreamEndpoint<int> endpoint, int to) = 40;
    MQDescriptor<byte, SynchronizedReadWrite> queueWith(in byte[] content) = 41;
    /** An operation that ends only when it is canceled, through the binder that it returns. */
    IBinder start() = 42;
    boolean canceled() = 43;
    int callerPid() = 50;
    oneway void die() = 51;
}
