// Two files that include everything make one program: no function or variable is defined twice.
#include <hvd/hvd.hpp>

const void* sum_seen_by_other();

int main() {
  // An inline constant is one object, whichever file asks.
  return sum_seen_by_other() == static_cast<const void*>(&hvd::sum) ? 0 : 1;
}
