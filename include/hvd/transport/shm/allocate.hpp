// hvd/transport/shm/allocate.hpp: a segment with a part for each rank of a group.
#pragma once

#include <hvd/error.hpp>
#include <hvd/shared_memory/agree.hpp>
#include <hvd/shared_memory/peer_memory.hpp>
#include <hvd/shared_memory/segment.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include <unistd.h>

namespace hvd::inline HVD_ABI::detail {

/// A segment that has a name for a short while: rank 0 makes it, the others open it, and all remove the name.
inline std::shared_ptr<segment> allocate_named(peer_memory& m, const std::string& directory, const std::string& name,
                                               std::size_t stride) {
  const std::size_t bytes = stride * static_cast<std::size_t>(m.size());
  std::shared_ptr<segment> s;
  std::optional<error> trouble;
  const auto attempt = [&](std::size_t wanted, auto&& step) {
    struct {
      int failed = 0, why = 0;  // the kind of the error plus 1, and errno
    } fared;
    errno = 0;
    try {
      step();
    } catch (const error& e) {
      fared = {static_cast<int>(e.kind()) + 1, errno};
      trouble.emplace(e);
    }
    const auto all = share(m, fared, operation::alloc_shared);
    for (int q = 0; q != m.size(); ++q) {
      const auto& other = all[static_cast<std::size_t>(q)];
      if (other.failed == 0) continue;
      if (trouble) throw error(*trouble);
      fail(kind_of(static_cast<std::uint64_t>(other.failed) - 1),
           {"rank ", q, " could not get ", wanted, " bytes in ", directory, other.why != 0 ? ": " : "",
            other.why != 0 ? std::strerror(other.why) : ""},
           q);
    }
  };
  // Every rank removes the name, which is random: rank 0 may be lost between making and removing it.
  struct unlinker {
    std::string path;
    ~unlinker() { ::unlink(path.c_str()); }
  } const at_end{joined({directory, "/", name})};
  attempt(bytes, [&] {
    if (m.rank() != 0) return;
    s = std::make_shared<segment>(segment::make(directory, name, bytes, 0));
    if (!s->lock(segment::creator_byte) || !s->publish()) fail(error_kind::system, {s->path(), " exists already"});
  });
  attempt(stride, [&] {
    std::string why;
    if (m.rank() != 0) {
      if (auto opened = segment::open(directory, name, bytes, why)) s = std::make_shared<segment>(std::move(*opened));
    }
    if (!s) fail(error_kind::system, {"cannot open ", directory, "/", name, ": ", why});
    s->reserve(static_cast<std::size_t>(m.rank()) * stride, stride);
  });
  return s;
}

}  // namespace hvd::inline HVD_ABI::detail
