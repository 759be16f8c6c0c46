// bench/backends/hvd_engine.hpp: hvd's engine, which takes tensors by name, over each transport.
#pragma once

#include <bench/backend.hpp>

#include <hvd/transport/self.hpp>
#include <hvd/transport/shm.hpp>
#include <hvd/transport/thread.hpp>

#include <memory>

namespace hvd::bench {

/// An engine with the options of the environment. Collective. Errors: hvd::error.
std::unique_ptr<NamedReductions> make_named(ShmTransport& comm, const job& work);
std::unique_ptr<NamedReductions> make_named(ThreadTransport& comm, const job& work);
std::unique_ptr<NamedReductions> make_named(SelfTransport& comm, const job& work);

}  // namespace hvd::bench
