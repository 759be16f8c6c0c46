// error: CarriesEngine
#include <hvd/engine.hpp>
#include <hvd/transport/self.hpp>

// A transport of a program's own that makes no groups.
struct plain : private hvd::SelfTransport {
  using SelfTransport::arrived;
  using SelfTransport::barrier;
  using SelfTransport::check;
  using SelfTransport::exchange;
  using SelfTransport::rank;
  using SelfTransport::recv;
  using SelfTransport::send;
  using SelfTransport::size;
};

#ifdef BAD
void f(plain& comm) { hvd::Engine engine(comm); }
#else
static_assert(hvd::Probing<plain>);
void f(hvd::SelfTransport& comm) { hvd::Engine engine(comm); }
#endif
