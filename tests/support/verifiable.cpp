// What verifiable.hpp declares, optimised in every build.
#define HVD_VERIFIABLE
#include "verifiable.hpp"
