/* The interface example.IAdder, as AIDL describes it in ../rsbinder/aidl. */
#ifndef ADDER_H
#define ADDER_H

#define ADDER_INTERFACE "example.IAdder"
/* int add(int a, int b): the first method. */
#define ADDER_ADD 1
/* Exceptions of AIDL, the first number of each reply. */
#define ADDER_OK 0
#define ADDER_ILLEGAL_ARGUMENT (-3)

#endif
