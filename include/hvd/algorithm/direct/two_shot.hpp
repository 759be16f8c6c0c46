// hvd/algorithm/direct/two_shot.hpp: large reductions: each rank reduces its slice of every chunk for all.
//
// A rank stages the slices of its input that others reduce, reduces its own slice of all inputs, and writes the result
// to the memory in which each rank staged its part; each rank copies it out from there. So the rank that last read a
// line always writes it next, and windows need not rotate. While chunk k is reduced, chunk k+1 is staged and chunk k-1
// copied out. There are no barriers, only two words for each rank that grow with k: `staged` and `reduced`.
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

/// The common part of the two-shot reductions: chunks of `count` elements, cut into a slice for each rank.
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
  /// The address at which rank r stages slice q of chunk k.
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
    m_.take(plan_);
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

/// Allreduce (root < 0), or reduce to a root, of a vector (vector.hpp). `op` reduces in the type in which it
/// travels; `outer` scales before it is converted.
template <class V>
class two_shot_reduction {
 public:
  two_shot_reduction(peer_memory& m, const V& v, const reduction& op, const reduction* outer, int root,
                     std::size_t chunk_bytes, output how)
      : m_(m), v_(v), op_(op), outer_(outer), root_(root), how_(how),
        slices_(m, v.length, v.unit, chunk_bytes, v.converts()), run_(m, slices_.plan(), *this, root) {}

  bool begin() { return run_.begin(); }
  void meanwhile() const noexcept {}
  void run(std::span<const descriptor> all) { run_.run(all, how_); }

 private:
  friend class two_shot_run<two_shot_reduction>;
  using order = two_shot_run<two_shot_reduction>;

  /// Calls f(piece, first element within it, elements, byte within the slice) for each piece in slice q of chunk k.
  template <class F>
  void each(std::uint64_t k, int q, const F& f) const {
    const auto s = slices_.slice(k, q);
    v_.each(s.first, s.first + s.count, [&](const auto& p, std::size_t first, std::size_t at, std::size_t n) {
      f(p, first, n, (at - s.first) * v_.unit);
    });
  }
  [[nodiscard]] std::byte* staged(int r, std::uint64_t k, int q) const noexcept { return slices_.staged(m_, r, k, q); }

  void put(std::uint64_t k) const {
    const int r = m_.rank();
    for (int q = 0; q != m_.size(); ++q) {
      if (q == r && !v_.converts()) continue;
      each(k, q, [&, to = staged(r, k, q)](const auto& p, std::size_t first, std::size_t n, std::size_t at) {
        v_.stage(to + at, p, first, n, outer_);
      });
    }
  }

  /// Reduces this rank's slice, and writes the result to the memory in which each rank staged its part of it. (Also in
  /// a reduction to a root, where only the root reads its part: elsewhere the stores touch the lines, see line_costs.)
  void reduce(std::uint64_t k, order& run) {
    const int r = m_.rank();
    const std::byte** const ins = m_.inputs();
    std::byte** const outs = m_.outputs();
    for (int q = 0; q != m_.size(); ++q) {
      if (q != r) run.await_staged(q, k);
    }
    each(k, r, [&](const auto& p, std::size_t first, std::size_t n, std::size_t at) {
      int count = 0;
      for (int q = 0; q != m_.size(); ++q) {
        if (q != r) ins[q] = outs[count++] = staged(q, k, r) + at;
      }
      if (v_.converts()) {
        ins[r] = outs[count] = staged(r, k, r) + at;
        op_.complete(outs, count + 1, ins, m_.size(), n);
        return v_.unpack(p, first, n, ins[r]);
      }
      ins[r] = p.in + first * v_.unit;
      const int peers = count;
      if (root_ < 0 || r == root_) outs[count++] = p.out + first * v_.unit;
      if (how_ == output::streaming && count != peers && p.in != p.out) {
        complete_streaming(op_, outs, count, peers, ins, m_.size(), n);
      } else {
        op_.complete(outs, count, ins, m_.size(), n);
      }
    });
  }

  void copy_out(std::uint64_t k, order& run) {
    const int r = m_.rank();
    for (int q = 0; q != m_.size(); ++q) {
      if (q == r) continue;
      run.await_reduced(q, k);
      each(k, q, [&, from = staged(r, k, q)](const auto& p, std::size_t first, std::size_t n, std::size_t at) {
        if (v_.converts()) return v_.unpack(p, first, n, from + at);
        copy_to(p.in == p.out ? output::cached : how_, p.out + first * v_.unit, from + at, n * v_.unit);
      });
    }
  }

  peer_memory& m_;
  const V& v_;
  const reduction& op_;
  const reduction* outer_;
  int root_;
  output how_;
  two_shot_slices slices_;
  order run_;
};

}  // namespace hvd::inline HVD_ABI::detail
