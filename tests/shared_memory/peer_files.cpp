#include <hvd/shared_memory/peer_files.hpp>

#include <hvd/allreduce.hpp>
#include <hvd/launch.hpp>

#include "support/require.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

namespace {

using hvd::ShmTransport;
using hvd::test::require;

/// A file in memory without a name, as a framework has it, and a mapping of it.
class file {
 public:
  explicit file(std::size_t floats) : bytes_(floats * sizeof(float)), fd_(::memfd_create("test", MFD_CLOEXEC)) {
    require(fd_ >= 0 && ::ftruncate(fd_, static_cast<off_t>(bytes_)) == 0, "a file");
    void* const at = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    require(at != MAP_FAILED, "a mapping");
    data_ = static_cast<float*>(at);
  }
  file(const file&) = delete;
  file& operator=(const file&) = delete;
  ~file() {
    ::munmap(data_, bytes_);
    ::close(fd_);
  }

  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] float* data() const noexcept { return data_; }

 private:
  std::size_t bytes_;
  int fd_;
  float* data_ = nullptr;
};

TEST_CASE("files of all ranks become a block, and allreduce on it is seen in the files") {
  for (const int ranks : {1, 2, 3, 4}) {
    CHECK(hvd::fork_run(ranks, [](ShmTransport& comm) {
            for (const std::size_t n : {std::size_t{1}, std::size_t{1025}, std::size_t{100'003}}) {
              const file own(n);
              for (std::size_t i = 0; i != n; ++i) own.data()[i] = static_cast<float>(comm.rank() + 1);
              auto shared = comm.map_shared<float>(own.fd(), n);
              require(shared.size() == n, "mapped");
              require(comm.size() == 1 || comm.peers().find_block(reinterpret_cast<const std::byte*>(shared.data()),
                                                                  n * sizeof(float)) != nullptr,
                      "a block of the group");
              hvd::allreduce(comm, shared);
              const auto sum = static_cast<float>(comm.size() * (comm.size() + 1) / 2);
              for (std::size_t i = 0; i != n; ++i) require(own.data()[i] == sum, "the sum, in the file");
            }
          }) == 0);
  }
}

TEST_CASE("where a rank has no file, or another length, no rank gets a block, and the group is usable") {
  CHECK(hvd::fork_run(3, [](ShmTransport& comm) {
          const file own(1000);
          require(comm.map_shared<float>(comm.rank() == 1 ? -1 : own.fd(), 1000).empty(), "rank 1 has no file");
          require(comm.map_shared<float>(own.fd(), comm.rank() == 2 ? 999 : 1000).empty(), "lengths differ");
          require(comm.map_shared<float>(comm.rank() == 0 ? STDIN_FILENO : own.fd(), 1000).empty(),
                  "no file in memory");
          require(comm.map_shared<float>(own.fd(), comm.rank() == 0 ? 2000 : 1000).empty(), "a file that is too short");
          float value[] = {1};
          hvd::allreduce(comm, value);
          require(value[0] == 3, "the sum");
        }) == 0);
}

TEST_CASE("what another rank names is opened only if it is the file that it means") {
  hvd::detail::peer_files files(1, 4096);
  const file own(1024), other(1024);
  auto meant = hvd::detail::peer_files::describe(own.fd(), 4096);
  CHECK(files.map(0, meant));
  auto wrong = meant;
  wrong.descriptor = other.fd();
  CHECK_FALSE(files.map(0, wrong));
  wrong = meant;
  wrong.process = 1 << 30;
  CHECK_FALSE(files.map(0, wrong));
  CHECK(hvd::detail::peer_files::describe(-1, 4096).descriptor == -1);
  CHECK(hvd::detail::peer_files::describe(own.fd(), 4097).descriptor == -1);
}

}  // namespace
