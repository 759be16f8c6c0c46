// tests/bench/collective.cpp: what outputs consist of, against the lengths of the buffers.
#include <bench/job.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <vector>

using namespace hvd::bench;

TEST_CASE("pieces fill each output once, from within the inputs") {
  constexpr std::size_t count = 3;
  for (std::size_t k = 0; k != collective_names.size(); ++k) {
    const auto kind = static_cast<collective>(k);
    CAPTURE(std::string(name(kind)));
    for (int size = 1; size != 5; ++size) {
      const extent e = extent_of(kind, count, size);
      for (int root = 0; root != (has_root(kind) ? size : 1); ++root) {
        for (int rank = 0; rank != size; ++rank) {
          std::vector<int> written(e.out, 0);
          each_piece(kind, rank, size, root, count, [&](const piece& p) {
            CHECK(p.from + count <= e.in);
            CHECK((p.rank >= 0 && p.rank < size && p.ranks <= size));
            CHECK((p.ranks > 0) == reduces(kind));
            CHECK(p.at + count <= written.size());
            for (std::size_t i = 0; i != count; ++i) ++written.at(p.at + i);
          });
          const bool gets =
              (facts(kind).root != root_role::gets || rank == root) && !(kind == collective::exscan && rank == 0);
          CHECK(written == std::vector<int>(e.out, gets ? 1 : 0));
        }
      }
    }
  }
}

TEST_CASE("a scan reduces the ranks up to each, an exscan those before it, and neither has an average") {
  for (int rank = 0; rank != 4; ++rank) {
    each_piece(collective::scan, rank, 4, 0, 5, [&](const piece& p) { CHECK(p.ranks == rank + 1); });
    each_piece(collective::exscan, rank, 4, 0, 5, [&](const piece& p) { CHECK(p.ranks == rank); });
  }
  CHECK(has_op(collective::scan, redop::sum));
  CHECK_FALSE(has_op(collective::scan, redop::avg));
  CHECK(has_op(collective::allreduce, redop::avg));
  CHECK_FALSE(has_op(collective::broadcast, redop::sum));
}
