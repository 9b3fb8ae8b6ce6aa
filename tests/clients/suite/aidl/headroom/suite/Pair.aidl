package headroom.suite;

/** A type with parameters. */
@RustDerive(Clone=true, PartialEq=true)
parcelable Pair<A, B> {
    int left;
    int right;
}
