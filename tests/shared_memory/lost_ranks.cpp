// What a rank writes for hvdrun when it has lost another one: one line, into hvdrun's file and no other.
#include <hvd/shared_memory/lost_ranks.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

namespace {

struct memory_file {
  explicit memory_file(const char* name) : fd(::memfd_create(name, MFD_CLOEXEC)) { REQUIRE(fd >= 0); }
  memory_file(const memory_file&) = delete;
  memory_file& operator=(const memory_file&) = delete;
  ~memory_file() { ::close(fd); }

  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(fd); }
  [[nodiscard]] std::string text() const {
    std::array<char, 256> data{};
    const ssize_t n = ::pread(fd, data.data(), data.size(), 0);
    REQUIRE(n >= 0);
    return {data.data(), static_cast<std::size_t>(n)};
  }
  int fd;
};

}  // namespace

TEST_CASE("each lost rank is a line, with ranks of the job") {
  const memory_file file("hvd-lost-ranks");
  const hvd::detail::lost_ranks ranks(file.path().c_str(), "2");
  CHECK(ranks.own() == 3);
  ranks.add(1, "enter the same call");
  ranks.add(1000, "send");
  CHECK(file.text() == "peer_lost 0 2 enter the same call\npeer_lost 999 2 send\n");
  ranks.add(0, "send");            // a rank that is not known
  ranks.add(ranks.own(), "send");  // ranks that this process has started itself
  ranks.add(1, std::string(200, 'x').c_str());
  CHECK(file.text() == "peer_lost 0 2 enter the same call\npeer_lost 999 2 send\n");
}

TEST_CASE("nothing is written without hvdrun, nor into another file") {
  const memory_file other("hvd-result-0");
  const hvd::detail::lost_ranks wrong(other.path().c_str(), "2");
  wrong.add(1, "send");
  CHECK(other.text().empty());
  for (const char* path : {"", "/", "/no/such/file"}) hvd::detail::lost_ranks(path, "2").add(1, "send");
  CHECK(hvd::detail::lost_ranks(nullptr, "2").own() == 0);
  CHECK(hvd::detail::lost_ranks(other.path().c_str(), nullptr).own() == 0);
  CHECK(hvd::detail::lost_ranks(std::string(200, '/').c_str(), "2").own() == 0);
}
