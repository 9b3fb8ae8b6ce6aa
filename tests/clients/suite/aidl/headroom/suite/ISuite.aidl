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

    boolean echoBoolean(boolean value);
    byte echoByte(byte value);
    char echoChar(char value);
    int echoInt(int value);
    long echoLong(long value);
    float echoFloat(float value);
    double echoDouble(double value);
    String echoString(in String value);
    Small echoSmall(Small value);
    Medium echoMedium(Medium value);
    Large echoLarge(Large value);
    Point echoPoint(in Point value);
    Value echoValue(in Value value);
    Holder echoHolder(in Holder value);
    IBinder echoBinder(in IBinder value);
    INamed echoNamed(in INamed value);
    ParcelFileDescriptor echoFile(in ParcelFileDescriptor value);

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
