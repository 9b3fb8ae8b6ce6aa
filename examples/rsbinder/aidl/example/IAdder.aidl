package example;

interface IAdder {
    /** The sum. An overflow is an illegal argument. */
    int add(int a, int b);
}
