// c/compiled.cpp: the one file that defines what HVD_COMPILED leaves out of all others.
#include <hvd/compiled.hpp>
