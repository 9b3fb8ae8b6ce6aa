package headroom.suite;

@Backing(type="int")
enum Medium { ZERO, ONE, MANY = 1000000 }
