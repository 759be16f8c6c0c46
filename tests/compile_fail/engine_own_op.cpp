// error: this reduction must be built in (sum, average, min, max, product)
#include <hvd/engine.hpp>
#include <hvd/transport/thread.hpp>

#include <vector>

struct difference {
  float operator()(float a, float b) const { return a - b; }
};

void f(hvd::Engine<hvd::ThreadTransport>& engine, std::vector<float>& v) {
#ifdef BAD
  static_cast<void>(engine.allreduce("x", v, difference{}));
#else
  static_cast<void>(engine.allreduce("x", v, hvd::scaled(hvd::average, 0.5)));
#endif
}
