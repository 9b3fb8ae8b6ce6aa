package headroom.suite;

/** An object with a name. */
interface INamed {
    String name();
}
