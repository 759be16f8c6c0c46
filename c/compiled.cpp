// c/compiled.cpp: the file of a program that has what HVD_COMPILED leaves out of all others.
#include <hvd/compiled.hpp>
