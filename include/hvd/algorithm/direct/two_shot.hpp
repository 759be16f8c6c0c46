// hvd/algorithm/direct/two_shot.hpp: large reductions: each rank reduces its slice of every chunk for all.
//
// A rank stages the slices of its input that others reduce, reduces its own slice of all inputs, and writes the result
// to where each rank staged its part; from there each rank copies it out. So the rank that last read a line always
// writes it next, and windows need not rotate. While chunk k is reduced, chunk k+1 is staged and chunk k-1 copied out.
// There are no barriers, only two words for each rank that grow with k: `staged` and `reduced`.
//
// Why a ring of three chunks suffices without a further flag: before a rank stages chunk j, it has copied chunk j-3 out
// of the same memory. For that it waited until the `reduced` of every rank passed j-3, so no other rank uses that
// memory any more. In a reduction to a root the other ranks do not copy out, and staging waits for `reduced` instead.
// `agree` has shown that all earlier operations are over.
//
// As in YHCCL (Peng et al., SC'23), a rank does not stage its own slice: 6 - 4/p memory accesses for each byte.
#pragma once

#include <hvd/algorithm/direct/staged.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace hvd::inline HVD_ABI::detail {

/// What the two-shot reductions share: chunks of `count` elements, cut into a slice for each rank.
class two_shot_slices {
 public:
  /// `own`: this rank's slice gets a slot, too.
  two_shot_slices(const peer_memory& m, std::size_t count, std::size_t element_bytes, std::size_t chunk_bytes,
                  bool own = false)
      : ranks_(static_cast<std::size_t>(m.size())), count_(count), element_bytes_(element_bytes),
        slice_(even_part(m, (count + ranks_ - 1) / ranks_, chunk_bytes, slot_count(m.size(), own), element_bytes)),
        stride_(round_up(slice_ * element_bytes, cache_line)),
        plan_(m.staging().plan(chunks(), stride_ * static_cast<std::size_t>(slot_count(m.size(), own)))) {}

  struct range {
    std::size_t first, count;  // elements
  };
  /// Slice q of chunk k. The last chunk is cut evenly too, so that no rank reduces all of it.
  [[nodiscard]] range slice(std::uint64_t k, int q) const noexcept {
    const std::size_t first = k * slice_ * ranks_;
    const std::size_t left = std::min(count_ - first, slice_ * ranks_);
    std::size_t each = slice_;
    if (left < slice_ * ranks_) {
      const std::size_t unit = element_bytes_ < cache_line ? cache_line / element_bytes_ : 1;
      each = std::min(slice_, round_up((left + ranks_ - 1) / ranks_, unit));
    }
    const std::size_t from = std::min(left, each * static_cast<std::size_t>(q));
    return {first + from, std::min(left - from, each)};
  }
  /// Where rank r stages slice q of chunk k.
  [[nodiscard]] std::byte* staged(const peer_memory& m, int r, std::uint64_t k, int q) const noexcept {
    return m.at(r, plan_[k]) + slot_of(r, q, m.size()) * stride_;
  }
  [[nodiscard]] const staging_plan& plan() const noexcept { return plan_; }

 private:
  [[nodiscard]] std::uint64_t chunks() const noexcept { return parts_in(count_, slice_ * ranks_); }

  std::size_t ranks_;
  std::size_t count_;
  std::size_t element_bytes_;
  std::size_t slice_;   // elements of a rank's slice of a chunk
  std::size_t stride_;  // bytes between slices
  staging_plan plan_;
};

/// Runs the steps in order. `Parts` has put(k), which stages, and reduce(k, run) and copy_out(k, run), which wait for
/// peers through await_staged and await_reduced.
template <class Parts>
class two_shot_run {
 public:
  two_shot_run(peer_memory& m, const staging_plan& plan, Parts& parts, int root = -1)
      : m_(m), plan_(plan), parts_(parts), root_(root) {}

  /// Called before ranks compare their calls: stages the first chunk if its place is free. True if it did.
  bool begin() {
    if (!m_.staging().is_free(plan_)) return false;
    parts_.put(0);
    return begun_ = true;
  }
  void run(std::span<const descriptor> all, output how) {
    all_ = all;
    m_.staging().take(plan_);
    if (plan_.chunks == 0) return;
    stage(0);
    for (std::uint64_t k = 0; k != plan_.chunks; ++k) {
      if (k + 1 != plan_.chunks) stage(k + 1);
      parts_.reduce(k, *this);
      m_.store(m_.mine().reduced.value, plan_.first + k + 1);
      if (k != 0) copy_out(k - 1);
    }
    copy_out(plan_.chunks - 1);
    output_fence(how);
  }

  void await_staged(int q, std::uint64_t k) {
    if (k == 0 && !all_.empty() && all_[static_cast<std::size_t>(q)].has(descriptor::staged)) return;
    m_.await(m_.of(q).staged.value, plan_.first + k + 1, q, phase::stage);
  }
  void await_reduced(int q, std::uint64_t k) {
    m_.await(m_.of(q).reduced.value, plan_.first + k + 1, q, phase::reduce);
  }

 private:
  void stage(std::uint64_t k) {
    if (k == 0 && begun_) return;
    for (int q = 0; root_ >= 0 && k >= plan_.lap && q != m_.size(); ++q) {
      if (q != m_.rank()) await_reduced(q, k - plan_.lap);
    }
    parts_.put(k);
    m_.store(m_.mine().staged.value, plan_.first + k + 1);
  }
  void copy_out(std::uint64_t k) {
    if (root_ < 0 || m_.rank() == root_) parts_.copy_out(k, *this);
  }

  peer_memory& m_;
  const staging_plan& plan_;
  Parts& parts_;
  int root_;
  bool begun_ = false;
  std::span<const descriptor> all_{};
};

/// Allreduce (root < 0), or reduce to a root.
class two_shot_reduction {
 public:
  two_shot_reduction(peer_memory& m, const std::byte* in, std::byte* out, std::size_t count, const reduction& op,
                     int root, std::size_t chunk_bytes, output how)
      : m_(m), in_(in), out_(out), op_(op), root_(root), how_(how), slices_(m, count, op.element_bytes, chunk_bytes),
        run_(m, slices_.plan(), *this, root) {}

  bool begin() { return run_.begin(); }
  void meanwhile() const noexcept {}
  void run(std::span<const descriptor> all) { run_.run(all, how_); }

 private:
  friend class two_shot_run<two_shot_reduction>;
  using order = two_shot_run<two_shot_reduction>;

  void put(std::uint64_t k) const {
    for (int q = 0; q != m_.size(); ++q) {
      if (q == m_.rank()) continue;
      const auto s = slices_.slice(k, q);
      stage_bytes(slices_.staged(m_, m_.rank(), k, q), in_ + s.first * op_.element_bytes, s.count * op_.element_bytes);
    }
  }

  /// Reduces this rank's slice, and writes the result to where each rank staged its part of it. (Also in a reduction to
  /// a root, where only the root reads its part: elsewhere the stores touch the lines, see line_costs.)
  void reduce(std::uint64_t k, order& run) {
    const int r = m_.rank();
    const auto s = slices_.slice(k, r);
    const std::byte** const ins = m_.inputs();
    std::byte** const outs = m_.outputs();
    int n = 0;
    for (int q = 0; q != m_.size(); ++q) {
      ins[q] = in_ + s.first * op_.element_bytes;
      if (q == r) continue;
      run.await_staged(q, k);
      ins[q] = outs[n++] = slices_.staged(m_, q, k, r);
    }
    const int staged = n;
    if (root_ < 0 || r == root_) outs[n++] = out_ + s.first * op_.element_bytes;
    if (n != staged && how_ == output::streaming) {
      complete_streaming(op_, outs, n, staged, ins, m_.size(), s.count);
    } else if (s.count != 0) {
      op_.complete(outs, n, ins, m_.size(), s.count);
    }
  }

  void copy_out(std::uint64_t k, order& run) {
    for (int q = 0; q != m_.size(); ++q) {
      if (q == m_.rank()) continue;
      run.await_reduced(q, k);
      const auto s = slices_.slice(k, q);
      copy_to(how_, out_ + s.first * op_.element_bytes, slices_.staged(m_, m_.rank(), k, q),
              s.count * op_.element_bytes);
    }
  }

  peer_memory& m_;
  const std::byte* in_;
  std::byte* out_;
  const reduction& op_;
  int root_;
  output how_;
  two_shot_slices slices_;
  order run_;
};

}  // namespace hvd::inline HVD_ABI::detail
