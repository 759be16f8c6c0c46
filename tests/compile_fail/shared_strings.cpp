// error: shared memory holds trivially copyable values only: other ranks write their bytes
#include <hvd/transport/thread.hpp>

#include <string>

#ifdef BAD
using value = std::string;
#else
using value = char;
#endif

void f(hvd::ThreadTransport& comm) { auto shared = comm.alloc_shared<value>(8); }
