package headroom.suite;

/** Holds itself. */
@RustDerive(Clone=true, PartialEq=true)
parcelable Tree {
    int value;
    @nullable(heap=true) Tree child;
    List<Tree> children;
}
