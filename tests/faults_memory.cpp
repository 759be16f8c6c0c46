// No memory, too little of it, or none where it was looked for: an error that says so on every rank, never SIGBUS.
#include <hvd/hvd.hpp>

#include "support/processes.hpp"
#include "support/require.hpp"
#include "support/sanitizers.hpp"
#include "support/skip.hpp"
#include "support/tiny_directory.hpp"

#include <doctest/doctest.h>

#include <sys/resource.h>
#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <limits>

namespace {

using hvd::error_kind;
using hvd::ShmTransport;
using hvd::test::children;
using hvd::test::now;
using hvd::test::pause_for;
using hvd::test::private_directory;
using hvd::test::report;
using hvd::test::require;
using hvd::test::tiny_directory;

constexpr std::size_t page = 4096;
constexpr std::size_t staging = 64 << 10;

hvd::sharing_options tight_options(const std::string& directory, double start_timeout = 20.0) {
  hvd::sharing_options o;
  o.memory.directory = directory;
  o.memory.staging_bytes = staging;
  o.failure.timeout = std::chrono::seconds(20);
  o.failure.start_timeout = std::chrono::duration<double>(start_timeout);
  o.failure.check = false;
  return o;
}

std::string new_tight_job() {
  static int number = 0;
  return "memory-" + std::to_string(::getpid()) + "-" + std::to_string(++number);
}

std::size_t group_bytes(int size) { return hvd::detail::group_bytes(size, hvd::detail::make_geometry(size, staging)); }

void check_sum(hvd::ShmTransport& comm) {
  std::vector<int> data(20'000, 1);
  hvd::allreduce(comm, data);
  require(data.front() == comm.size() && data.back() == comm.size(), "wrong sum");
}

template <class F>
error_kind kind_of(F&& f) {
  try {
    f();
  } catch (const hvd::error& e) {
    return e.kind();
  }
  throw std::logic_error("no error");
}

TEST_CASE("a directory with any number of pages too few: no_memory on every rank, or all join") {
  constexpr int size = 3;
  const std::size_t wanted = group_bytes(size);
  int failed = 0, joined = 0;
  for (std::size_t bytes = page; bytes < wanted + 3 * page; bytes += page) {
    const tiny_directory tiny(bytes);
    if (!tiny.problem().empty()) return hvd::test::skip(tiny.problem());
    CAPTURE(bytes);
    CAPTURE(wanted);
    if (bytes == page) tiny.fill(page);  // nothing at all
    const auto opts = tight_options(tiny.path());
    const std::string job = new_tight_job();
    children ranks(size);
    const double since = now();
    ranks.start_all([&](int r, report&) {
      hvd::ShmTransport comm(job, r, size, opts);
      check_sum(comm);
    });
    REQUIRE(ranks.wait(60.0));
    CHECK(now() - since < 10.0);  // nobody waited for the time limit
    const bool enough = bytes >= wanted;
    for (int r = 0; r != size; ++r) {
      CAPTURE(r);
      CAPTURE(ranks[r].text());
      REQUIRE(WIFEXITED(ranks.status(r)));  // no SIGBUS
      if (enough) {
        CHECK(ranks.status(r) == 0);
      } else {
        CHECK(ranks[r].is(error_kind::no_memory));
        CHECK(ranks[r].says("join on rank " + std::to_string(r) + " of 3"));
      }
    }
    ++(enough ? joined : failed);
    if (!enough) {
      // One at least says how much, where and what is left.
      bool said = false;
      for (int r = 0; r != size; ++r) {
        said =
            said || (ranks[r].says("bytes wanted") && ranks[r].says(tiny.path()) && ranks[r].says("bytes free there"));
      }
      CHECK(said);
    }
    CHECK(std::filesystem::exists(tiny.path() + "/filler") == (bytes == page));
    CHECK(std::distance(std::filesystem::directory_iterator(tiny.path()), std::filesystem::directory_iterator()) ==
          (bytes == page ? 1 : 0));
  }
  CHECK(failed > 5);
  CHECK(joined >= 1);
}

TEST_CASE("a rank that waits for others in a directory that is full by now touches nothing that has no memory") {
  const tiny_directory tiny(group_bytes(2) - group_bytes(1) + hvd::detail::header_bytes);  // one window, exactly
  if (!tiny.problem().empty()) return hvd::test::skip(tiny.problem());
  const auto opts = tight_options(tiny.path());
  const std::string job = new_tight_job();
  children ranks(2);
  const auto join = [&](int r) { ranks.start(r, [&, r](report&) { ShmTransport(job, r, 2, opts); }); };
  join(0);
  REQUIRE(ranks.wait_while(20.0, [&] { return std::filesystem::space(tiny.path()).available != 0; }));
  pause_for(0.02);
  join(1);
  REQUIRE(ranks.wait(60.0));
  for (int r = 0; r != 2; ++r) {
    CAPTURE(ranks[r].text());
    REQUIRE(WIFEXITED(ranks.status(r)));  // no SIGBUS
    CHECK(ranks[r].is(error_kind::no_memory));
  }
  CHECK(std::filesystem::is_empty(tiny.path()));
}

TEST_CASE("alloc_shared and split that do not fit: no_memory on every rank, and the transport stays usable") {
  constexpr int size = 3;
  const tiny_directory tiny(group_bytes(size) + 10 * page);
  if (!tiny.problem().empty()) return hvd::test::skip(tiny.problem());
  const auto opts = tight_options(tiny.path());
  const std::string job = new_tight_job();
  children ranks(size);
  ranks.start_all([&](int r, report&) {
    hvd::ShmTransport comm(job, r, size, opts);
    for (int round = 0; round != 5; ++round) {
      try {
        auto shared = comm.alloc_shared<float>(4 * page);  // 4 pages each, 12 in all
        throw std::logic_error("memory that is not there");
      } catch (const hvd::error& e) {
        const std::string text = e.what();
        require(e.kind() == hvd::error::no_memory, text);
        require(text.find("alloc_shared on rank " + std::to_string(r)) != std::string::npos, text);
        require(text.find("16384 bytes") != std::string::npos || text.find(" 65536 bytes") != std::string::npos, text);
        require(text.find(opts.memory.directory) != std::string::npos, text);
      }
      check_sum(comm);
      require(kind_of([&] { auto part = comm.split(0, -r); }) == hvd::error::no_memory, "split found memory");
      check_sum(comm);
      auto fits = comm.alloc_shared<float>(page / sizeof(float));
      std::fill(fits.begin(), fits.end(), 1.0F);
      hvd::allreduce(comm, fits);
      require(fits[0] == 3.0F && fits[fits.size() - 1] == 3.0F, "wrong sum in shared memory");
    }
  });
  REQUIRE(ranks.wait(60.0));
  for (int r = 0; r != size; ++r) {
    CAPTURE(r);
    CAPTURE(ranks[r].text());
    CHECK(ranks.status(r) == 0);
  }
}

TEST_CASE("alloc_shared of more than any address: no_memory, not a small array that claims to be large") {
  const private_directory d;
  const auto opts = tight_options(d.path());
  const std::string job = new_tight_job();
  children ranks(2);
  ranks.start_all([&](int r, report&) {
    hvd::ShmTransport comm(job, r, 2, opts);
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    for (const std::size_t n : {most, most / 2, most / sizeof(double), most / sizeof(double) / 2, most / 4 + 1,
                                most / sizeof(double) + 2, std::size_t{1} << 61}) {
      require(kind_of([&] { auto a = comm.alloc_shared<double>(n); }) == hvd::error::no_memory, std::to_string(n));
    }
    check_sum(comm);
  });
  REQUIRE(ranks.wait(60.0));
  for (int r = 0; r != 2; ++r) {
    CAPTURE(ranks[r].text());
    CHECK(ranks.status(r) == 0);
  }
  CHECK(d.files() == std::vector<std::string>{});
  CHECK_THROWS_AS(hvd::thread_run(2,
                                  [](hvd::ThreadTransport& comm) {
                                    auto a = comm.alloc_shared<double>(std::numeric_limits<std::size_t>::max() / 8 + 2);
                                  }),
                  hvd::error);
}

TEST_CASE("a limit on the size of files: no_memory, not SIGXFSZ") {
  const private_directory d;
  const auto opts = tight_options(d.path());
  const std::string job = new_tight_job();
  children ranks(2);
  ranks.start_all([&](int r, report&) {
    const rlimit limit{staging, staging};
    require(::setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
    hvd::ShmTransport(job, r, 2, opts);
  });
  REQUIRE(ranks.wait(60.0));
  for (int r = 0; r != 2; ++r) {
    CAPTURE(ranks[r].text());
    CHECK(ranks[r].is(error_kind::no_memory));
    CHECK(ranks[r].says(std::to_string(group_bytes(2)) + " bytes wanted"));
    CHECK(ranks[r].says("(ulimit -f) is lower: raise it, or set memory_policy::staging_bytes lower"));
    CHECK(ranks[r].says(d.path()));
  }
  children later(2);
  later.start_all([&](int r, report&) {
    hvd::ShmTransport comm(job, r, 2, opts);
    const rlimit limit{staging, staging};
    require(::setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
    try {
      auto a = comm.alloc_shared<char>(staging);
      require(false, "no limit");
    } catch (const hvd::error& e) {
      // Rank 0 makes the file, for all; the others say as much, and why it could not.
      const std::string text = e.what(), bytes = std::to_string(2 * staging) + " bytes ";
      require(e.kind() == hvd::error::no_memory && text.find(bytes) != std::string::npos, text);
      require(text.find(r == 0 ? "File too large; the limit on file sizes" : ": File too large") != std::string::npos,
              text);
      require(text.find("staging_bytes") == std::string::npos, text);
    }
    check_sum(comm);
  });
  REQUIRE(later.wait(60.0));
  for (int r = 0; r != 2; ++r) {
    CAPTURE(later[r].text());
    CHECK(later.status(r) == 0);
  }
  CHECK(d.files() == std::vector<std::string>{});
}

TEST_CASE("a limit on a process's memory: no_memory that says how much and where") {
  if (hvd::test::sanitized) return hvd::test::skip("sanitizers reserve more address space than any limit allows");
  const private_directory d;
  const std::string job = new_tight_job();
  const auto no_more_than = [](std::size_t bytes) {
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlimit limit{pages * page + bytes, pages * page + bytes};
    require(::setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
  };
  {
    auto opts = tight_options(d.path(), 0.5);
    opts.memory.staging_bytes = std::size_t{64} << 20;
    children ranks(2);
    ranks.start_all([&](int r, report&) {
      if (r == 1) no_more_than(std::size_t{16} << 20);
      hvd::ShmTransport(job, r, 2, opts);
    });
    REQUIRE(ranks.wait(60.0));
    CAPTURE(ranks[0].text());
    CAPTURE(ranks[1].text());
    CHECK(ranks[1].is(error_kind::no_memory));
    CHECK(ranks[1].says(" bytes wanted"));
    CHECK(ranks[1].says(d.path()));
    CHECK(ranks[0].is(error_kind::timeout));
    CHECK(ranks[0].culprit == 1);
  }
  {
    const auto opts = tight_options(d.path());
    children ranks(2);
    ranks.start_all([&](int r, report&) {
      hvd::ShmTransport comm(job, r, 2, opts);
      if (r == 1) no_more_than(std::size_t{16} << 20);
      for (int round = 0; round != 3; ++round) {
        require(kind_of([&] { auto a = comm.alloc_shared<char>(std::size_t{64} << 20); }) == hvd::error::no_memory,
                "no limit");
        check_sum(comm);
      }
    });
    REQUIRE(ranks.wait(60.0));
    for (int r = 0; r != 2; ++r) {
      CAPTURE(ranks[r].text());
      CHECK(ranks.status(r) == 0);
    }
  }
  CHECK(d.files() == std::vector<std::string>{});
}

TEST_CASE("a directory that is missing, no directory, or not to be written: an error that names it, on every rank") {
  const private_directory d;
  std::ofstream(d.path() + "/file") << "not a directory";
  std::filesystem::create_directory(d.path() + "/closed");
  const bool root = ::geteuid() == 0;
  ::chmod(d.path().c_str(), 0755);
  ::chmod((d.path() + "/closed").c_str(), root ? 0555 : 0500);
  for (const std::string name : {"/missing", "/file", "/closed"}) {
    const auto opts = tight_options(d.path() + name);
    const std::string job = new_tight_job();
    children ranks(2);
    const double since = now();
    ranks.start_all([&](int r, report&) {
      if (root) require(::setgid(65534) == 0 && ::setuid(65534) == 0, "cannot become nobody");
      hvd::ShmTransport(job, r, 2, opts);
    });
    REQUIRE(ranks.wait(60.0));
    CHECK(now() - since < 10.0);
    for (int r = 0; r != 2; ++r) {
      CAPTURE(ranks[r].text());
      CHECK(ranks[r].is(error_kind::system));
      CHECK(ranks[r].says(d.path() + name + " (HVD_SHM_DIR or memory_policy::directory)"));
    }
  }
}

TEST_CASE("fork_run without memory: no_memory before any rank starts, or code 1 and no hang") {
  {
    const tiny_directory tiny(page);
    if (!tiny.problem().empty()) return hvd::test::skip(tiny.problem());
    tiny.fill(page);
    CHECK(kind_of([&] {
            hvd::fork_run(
                2, [](hvd::ShmTransport&) {}, tight_options(tiny.path()));
          }) == error_kind::no_memory);
  }
  const tiny_directory tiny(20 * page);
  CHECK(hvd::fork_run(
            2, [](hvd::ShmTransport&) {}, tight_options(tiny.path())) == 1);
  CHECK(std::filesystem::is_empty(tiny.path()));
}

TEST_CASE("a group takes no more than a mebibyte a rank, mode 600, and nothing has a name once all have joined") {
  const private_directory d;
  hvd::sharing_options opts;
  opts.memory.directory = d.path();
  opts.failure.check = false;
  for (const int size : {2, 3, 8}) {
    const std::string job = new_tight_job() + "@1";
    const std::string path = d.path() + "/" + hvd::detail::segment_name(job);
    children ranks(size);
    const auto member = [&](int r, report&) {
      hvd::ShmTransport comm(job, r, size, opts);
      hvd::barrier(comm);
      if (r == 0) require(std::filesystem::is_empty(d.path()), "the segment still has a name");
      auto shared = comm.alloc_shared<float>(1000);
      hvd::barrier(comm);
      if (r == 0) require(std::filesystem::is_empty(d.path()), "a shared array still has a name");
      hvd::barrier(comm);
    };
    for (int r = 0; r != size - 1; ++r) ranks.start(r, [&](report& mine) { member(r, mine); });
    REQUIRE(ranks.wait_while(20.0, [&] { return !std::filesystem::exists(path); }));
    struct stat st {};
    REQUIRE(::stat(path.c_str(), &st) == 0);
    CHECK((st.st_mode & 07777) == 0600);
    CHECK(st.st_uid == ::geteuid());
    CHECK(st.st_size <= off_t{size} << 20);
    ranks.start(size - 1, [&](report& mine) { member(size - 1, mine); });
    REQUIRE(ranks.wait(60.0));
    for (int r = 0; r != size; ++r) {
      CAPTURE(ranks[r].text());
      CHECK(ranks.status(r) == 0);
    }
  }
}

}  // namespace
