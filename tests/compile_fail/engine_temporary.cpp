// error: this buffer is a temporary that owns its elements
#include <hvd/engine.hpp>
#include <hvd/transport/thread.hpp>

#include <span>
#include <vector>

std::vector<float> make_vector();

void f(hvd::Engine<hvd::ThreadTransport>& engine, std::vector<float>& v) {
#ifdef BAD
  static_cast<void>(engine.allreduce("x", make_vector()));
#else
  static_cast<void>(engine.allreduce("x", std::span(v).first(2)));
#endif
}
