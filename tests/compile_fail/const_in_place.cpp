// error: an output buffer must not be const
#include <hvd/broadcast.hpp>
#include <hvd/transport/self.hpp>

#include <vector>

// The root only sends, and still every rank passes a buffer that can be written.
#ifdef BAD
void f(hvd::SelfTransport& comm, const std::vector<float>& v) { hvd::broadcast(comm, v); }
#else
void f(hvd::SelfTransport& comm, std::vector<float>& v) { hvd::broadcast(comm, v); }
#endif
