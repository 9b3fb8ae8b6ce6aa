package headroom.suite;

import headroom.suite.Point;

/** One of these. */
@RustDerive(Clone=true, PartialEq=true)
union Value {
    int number = 42;
    String text;
    Point point;
    int[] numbers;
}
