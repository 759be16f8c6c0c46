// c/compiled.cpp: the one file that defines everything that HVD_COMPILED leaves out of the others.
#include <hvd/compiled.hpp>
