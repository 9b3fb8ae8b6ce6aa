package headroom.suite;

import headroom.suite.Holder;
import headroom.suite.ICallback;
import headroom.suite.INamed;
import headroom.suite.Large;
import headroom.suite.Medium;
import headroom.suite.Point;
import headroom.suite.Small;
import headroom.suite.Value;

interface ISuite {
    const int ANSWER = 42;
    const String GREETING = "hello";

    boolean sayBoolean(boolean value);
    byte sayByte(byte value);
    char sayChar(char value);
    int sayInt(int value);
    long sayLong(long value);
    float sayFloat(float value);
    double sayDouble(double value);
    String sayString(in String value);
    Small saySmall(Small value);
    Medium sayMedium(Medium value);
    Large sayLarge(Large value);
    Point sayPoint(in Point value);
    Value sayValue(in Value value);
    Holder sayHolder(in Holder value);
    IBinder sayBinder(in IBinder value);
    INamed sayNamed(in INamed value);
    ParcelFileDescriptor sayFile(in ParcelFileDescriptor value);

    boolean[] reverseBoolean(in boolean[] values);
    byte[] reverseByte(in byte[] values);
    char[] reverseChar(in char[] values);
    int[] reverseInt(in int[] values);
    long[] reverseLong(in long[] values);
    float[] reverseFloat(in float[] values);
    double[] reverseDouble(in double[] values);
    String[] reverseString(in String[] values);
    Small[] reverseSmall(in Small[] values);
    Medium[] reverseMedium(in Medium[] values);
    Large[] reverseLarge(in Large[] values);
    Point[] reversePoint(in Point[] values);
    Value[] reverseValue(in Value[] values);
    INamed[] reverseNamed(in INamed[] values);
    List<String> reverseList(in List<String> values);

    @nullable String maybeString(in @nullable String value);
    @nullable int[] maybeInts(in @nullable int[] values);
    @nullable String[] maybeStrings(in @nullable String[] values);
    @nullable Point maybePoint(in @nullable Point value);
    @nullable INamed maybeNamed(in @nullable INamed value);

    int[] twice(in int[] values, out int[] copy);
    void move(inout Point point, int by);
    void fill(out Point point);

    INamed named(String name);
    int bounce(in ICallback callback, int times);
    void readFrom(in ParcelFileDescriptor file, out byte[] content);
    ParcelFileDescriptor pipeWith(in String content);

    void failWithCode(int code);
    void failWithException(int code);
    void failWithStatus(int status);

    void subscribe(in ICallback callback);
    oneway void notifyAll(int number);
    int callerPid();
    int callerUid();
    void sleep(int milliseconds);
    oneway void die();
}
