// Both versions in one process.
#include "part.hpp"

#include <cstdio>

int main() {
  const part& a = *first();
  const part& b = *second();
  const part* const parts[] = {&a, &b};
  for (const part* p : parts) {
    std::printf("%s: processes %d, threads %d\n", p->version, p->processes(), p->threads([] { return 0; }));
  }
  std::printf("one inside the other: %d %d\n", a.threads([] { return 10 * second()->threads([] { return 0; }); }),
              b.threads([] { return 10 * first()->threads([] { return 0; }); }));
  std::printf("own errors: %d %d, of the other: %d %d\n", a.catches(a.fail), b.catches(b.fail), a.catches(b.fail),
              b.catches(a.fail));
}
