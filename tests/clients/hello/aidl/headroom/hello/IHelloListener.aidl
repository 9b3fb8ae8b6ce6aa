package headroom.hello;

/** What the client offers to the service. */
interface IHelloListener {
    /** Answers while its own call is under way. */
    int answer(int question);
    /** One way. */
    oneway void received(int number);
}
