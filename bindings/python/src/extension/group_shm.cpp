// group_shm.cpp: a group of ranks of one host, and one of a single rank.

#include "connection_of.hpp"

#include <hvd/shared_memory/tagged_messages.hpp>
#include <hvd/transport/self.hpp>
#include <hvd/transport/shm.hpp>

#include <memory>
#include <string>
#include <utility>

namespace hvd_python {
namespace {

/// Messages in their own segment, so that they never wait for a collective.
class shm_messages : public hvd::detail::tagged_messages {
 public:
  explicit shm_messages(hvd::ShmTransport comm) : tagged_messages(comm.peers()), comm_(std::move(comm)) {}
  void abort() noexcept { comm_.abort(); }

 private:
  hvd::ShmTransport comm_;
};

}  // namespace

std::unique_ptr<connection> group_alone() {
  return std::make_unique<connection_of<hvd::SelfTransport, shm_messages>>(hvd::SelfTransport(), nullptr);
}

std::unique_ptr<connection> group_shm(const std::string& name, int rank, int size, double timeout, bool check) {
  hvd::sharing_options options;
  options.failure.start_timeout = hvd::failure_policy::seconds(timeout);
  if (check) options.failure.check = true;
  hvd::ShmTransport comm(name, rank, size, options);
  hvd::sharing_options for_messages = options;
  for_messages.failure.check = false;
  auto messages = std::make_unique<shm_messages>(hvd::ShmTransport(comm, for_messages));
  return std::make_unique<connection_of<hvd::ShmTransport, shm_messages>>(std::move(comm), std::move(messages));
}

}  // namespace hvd_python
