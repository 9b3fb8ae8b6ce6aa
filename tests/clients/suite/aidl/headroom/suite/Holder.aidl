package headroom.suite;

/** Holds what its reader knows. */
parcelable Holder {
    int before;
    ParcelableHolder extension;
    int after;
}
