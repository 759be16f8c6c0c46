// hvd/transport/mpi/native.hpp: hvd's collectives carried out by MPI's, blocking or non-blocking.
#pragma once

#include <hvd/call.hpp>
#include <hvd/detail/blocks.hpp>
#include <hvd/transport.hpp>
#include <hvd/transport/mpi/group.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// The objects that a collective of MPI needs until its end. Made only when needed: most blocking calls do not need
/// them, and the shortest take 200 ns.
struct mpi_kept {
  std::vector<MPI_Request> pending;
  std::vector<int> counts, places;
  std::vector<MPI_Datatype> types;
  temporary input, output;
  // The remaining steps at the end.
  const reduction* finish = nullptr;
  std::byte* result = nullptr;
  std::size_t count = 0;
  std::byte* copy_to = nullptr;
  const std::byte* copy_from = nullptr;
  std::size_t copy_size = 0;
};

/// One collective of MPI, from its start to its end. In hvd each rank decides for itself whether its input and output
/// are the same. MPI requires MPI_IN_PLACE on all ranks or on none, except at roots, and Open MPI's non-blocking
/// collectives choose their algorithm by it. So here non-blocking collectives are in place on all ranks, after a copy
/// if necessary. Blocking ones accept a mixture: the copy would cost 14 % of an allreduce of 64 KiB in MPICH, and 80 %
/// of an allgather in Open MPI.
class mpi_work {
 public:
  /// `blocking`: waits inside MPI; otherwise `done` or `wait` complete the collective.
  mpi_work(mpi_group& group, bool blocking) : group_(group), blocking_(blocking) {}
  mpi_work(const mpi_work&) = delete;
  mpi_work& operator=(const mpi_work&) = delete;

  /// Each `start` returns false, with nothing sent, if MPI does not support the call; the same on all ranks.
  bool start(const allreduce_call& c) { return start_vector("MPI_Allreduce", MPI_Allreduce, MPI_Iallreduce, c); }
  bool start(const scan_call& c) { return start_vector("MPI_Scan", MPI_Scan, MPI_Iscan, c); }
  bool start(const exscan_call& c) {
    if (rank() > 0 || reduction_of(c.op).op == MPI_OP_NULL) {
      return start_vector("MPI_Exscan", MPI_Exscan, MPI_Iexscan, c);
    }
    // MPI does not say what it leaves in the output of rank 0, where hvd leaves the output unchanged.
    keep().output = temporary(c.count * c.op.element_bytes);
    return start_vector("MPI_Exscan", MPI_Exscan, MPI_Iexscan, exscan_call{c.in, kept_->output.data(), c.count, c.op});
  }

  bool start(const reduce_call& c) {
    const mpi_reduction r = reduction_of(c.op);
    if (r.op == MPI_OP_NULL) return false;
    begin(c.kind);
    const bool root = rank() == c.root;
    const std::byte* in = c.in;
    if (c.op.prepares()) {
      std::byte* const prepared = root ? c.out : input(c.count * c.op.element_bytes);
      c.op.prepare(prepared, in, c.count);
      in = prepared;
    }
    reduce_to(c.root, in, c.out, c.count, c.op, r);
    if (root) finish_later(c.op, c.out, c.count);
    return true;
  }

  bool start(const reduce_scatter_call& c) {
    const mpi_reduction r = reduction_of(c.op);
    if (r.op == MPI_OP_NULL) return false;
    begin(c.kind);
    const std::size_t own = c.blocks.count(rank());
    const std::byte* in = c.in;
    if (c.op.prepares()) {
      std::byte* const prepared = input(c.blocks.total_bytes());
      c.op.prepare(prepared, in, c.blocks.total_count());
      in = prepared;
    }
    // In place, the result lies within the input. hvd leaves the rest of the input unchanged; MPI would not.
    const std::less<const std::byte*> before;
    const bool inside = in == c.in && own != 0 && !before(c.out, in) && before(c.out, in + c.blocks.total_bytes());
    std::byte nothing;  // an empty output that MPI does not take for `in`
    if (inside) keep().output = temporary(own * c.op.element_bytes);
    std::byte* const out = inside ? kept_->output.data() : own == 0 ? &nothing : c.out;
    if (c.blocks.total_count() * r.components > most()) {
      for (int q = 0; q != size(); ++q) reduce_to(q, in + c.blocks.offset(q), out, c.blocks.count(q), c.op, r);
    } else if (c.blocks.uniform()) {
      issue("MPI_Reduce_scatter_block", MPI_Reduce_scatter_block, MPI_Ireduce_scatter_block, in, out,
            static_cast<int>(own * r.components), r.type, r.op);
    } else {
      for (int q = 0; q != size(); ++q) keep().counts.push_back(static_cast<int>(c.blocks.count(q) * r.components));
      issue("MPI_Reduce_scatter", MPI_Reduce_scatter, MPI_Ireduce_scatter, in, out, kept_->counts.data(), r.type, r.op);
    }
    finish_later(c.op, out, own);
    if (inside) copy_later(c.out, out, own * c.op.element_bytes);
    return true;
  }

  bool start(const allgather_call& c) {
    begin(c.kind);
    const std::size_t mine = c.blocks.bytes(rank());
    std::byte* const own = c.out + c.blocks.offset(rank());
    const bool in_place = !blocking_ || c.in == own;
    if (in_place) move(own, c.in, mine);
    const void* const in = in_place ? MPI_IN_PLACE : c.in;
    if (c.blocks.uniform()) {
      const mpi_bytes each = block_of(c.blocks);
      issue("MPI_Allgather", MPI_Allgather, MPI_Iallgather, in, each.count(), each.type(), c.out, each.count(),
            each.type());
    } else if (c.blocks.total_bytes() <= most()) {
      places_of(c.blocks);
      issue("MPI_Allgatherv", MPI_Allgatherv, MPI_Iallgatherv, in, static_cast<int>(mine), MPI_BYTE, c.out,
            kept_->counts.data(), kept_->places.data(), MPI_BYTE);
    } else {
      move(own, c.in, mine);
      for (int step = 1; step != size(); ++step) {
        receive_from(around(rank() - step, size()), c.out, c.blocks);
        send(own, mine, around(rank() + step, size()));
      }
    }
    return true;
  }

  bool start(const broadcast_call& c) {
    begin(c.kind);
    const bool root = rank() == c.root;
    const mpi_bytes all(c.bytes, most());
    issue("MPI_Bcast", MPI_Bcast, MPI_Ibcast, root ? const_cast<std::byte*>(c.in) : c.out, all.count(), all.type(),
          c.root);
    if (root) move(c.out, c.in, c.bytes);  // MPI only reads the root's buffer
    return true;
  }

  bool start(const alltoall_call& c) {
    begin(c.kind);
    const std::byte* in = c.in;
    if (in == c.out) {  // not MPI_IN_PLACE, which all ranks would have to use
      std::byte* const copy = input(c.send.total_bytes());
      copy_bytes(copy, c.in, c.send.total_bytes());
      in = copy;
    }
    if (c.send.uniform() && c.recv.uniform()) {
      const mpi_bytes out = block_of(c.send), back = block_of(c.recv);
      issue("MPI_Alltoall", MPI_Alltoall, MPI_Ialltoall, in, out.count(), out.type(), c.out, back.count(), back.type());
      return true;
    }
    // Only MPI_Alltoallw takes a type for each block: a rank with long blocks makes special types, the others need
    // none.
    std::vector<mpi_bytes> types;
    types.reserve(2 * static_cast<std::size_t>(size()));
    for (const partition* const blocks : {&c.send, &c.recv}) {
      for (int q = 0; q != size(); ++q) {
        const mpi_bytes& block = types.emplace_back(blocks->bytes(q), most(), blocks->offset(q));
        keep().counts.push_back(block.count());
        keep().places.push_back(block.displacement());
        keep().types.push_back(block.type());
      }
    }
    const int p = size();
    issue("MPI_Alltoallw", MPI_Alltoallw, MPI_Ialltoallw, in, kept_->counts.data(), kept_->places.data(),
          kept_->types.data(), c.out, kept_->counts.data() + p, kept_->places.data() + p, kept_->types.data() + p);
    return true;
  }

  bool start(const gather_call& c) {
    begin(c.kind);
    const std::size_t own = c.blocks.bytes(rank());
    const bool root = rank() == c.root;
    const bool in_place = root && c.in == c.out + c.blocks.offset(rank());
    const void* const in = in_place ? MPI_IN_PLACE : c.in;
    if (c.blocks.uniform()) {
      const mpi_bytes each = block_of(c.blocks);
      issue("MPI_Gather", MPI_Gather, MPI_Igather, in, each.count(), each.type(), c.out, each.count(), each.type(),
            c.root);
    } else if (c.blocks.total_bytes() <= most()) {
      places_of(c.blocks);
      issue("MPI_Gatherv", MPI_Gatherv, MPI_Igatherv, in, static_cast<int>(own), MPI_BYTE, c.out, kept_->counts.data(),
            kept_->places.data(), MPI_BYTE, c.root);
    } else if (root) {
      if (!in_place) move(c.out + c.blocks.offset(rank()), c.in, own);
      for (int q = 0; q != size(); ++q) {
        if (q != rank()) receive_from(q, c.out, c.blocks);
      }
    } else {
      send(c.in, own, c.root);
    }
    return true;
  }

  bool start(const scatter_call& c) {
    begin(c.kind);
    const std::size_t own = c.blocks.bytes(rank());
    const bool root = rank() == c.root;
    const bool in_place = root && c.out == c.in + c.blocks.offset(rank());
    void* const out = in_place ? MPI_IN_PLACE : c.out;
    if (c.blocks.uniform()) {
      const mpi_bytes each = block_of(c.blocks);
      issue("MPI_Scatter", MPI_Scatter, MPI_Iscatter, c.in, each.count(), each.type(), out, each.count(), each.type(),
            c.root);
    } else if (c.blocks.total_bytes() <= most()) {
      places_of(c.blocks);
      issue("MPI_Scatterv", MPI_Scatterv, MPI_Iscatterv, c.in, kept_->counts.data(), kept_->places.data(), MPI_BYTE,
            out, static_cast<int>(own), MPI_BYTE, c.root);
    } else if (root) {
      if (!in_place) move(c.out, c.in + c.blocks.offset(rank()), own);
      for (int q = 0; q != size(); ++q) {
        if (q != rank()) send(c.in + c.blocks.offset(q), c.blocks.bytes(q), q);
      }
    } else {
      group_.post_recv(name(kind_), c.out, own, c.root, mpi_group::collectives, next());
    }
    return true;
  }

  /// True if it has ended; each call lets MPI make progress.
  bool done() {
    if (!kept_) return true;
    mpi_kept& k = *kept_;
    if (!k.pending.empty()) {
      int flag = 0;
      const int code = MPI_Testall(static_cast<int>(k.pending.size()), k.pending.data(), &flag, MPI_STATUSES_IGNORE);
      group_.check(code, kind_, "MPI_Testall");
      if (flag == 0) return false;
    }
    if (k.finish != nullptr) k.finish->finish(k.result, k.count);
    if (k.copy_to != nullptr) copy_bytes(k.copy_to, k.copy_from, k.copy_size);
    kept_.reset();
    return true;
  }
  /// Waits until it has ended. Errors: timeout.
  void wait() {
    if (done()) return;
    group_.usable();
    group_.await(
        name(kind_), [&] { return done(); }, [] { return -1; },
        [&] {
          // MPI has no way to cancel a collective, and may still use this memory: it stays until the process ends.
          new mpi_kept(std::move(*kept_));
          kept_.reset();
        });
  }

 private:
  /// A reduction of whole vectors that every rank receives.
  template <class Blocking, class Started, class Call>
  bool start_vector(const char* name, Blocking blocking, Started started, const Call& c) {
    const mpi_reduction r = reduction_of(c.op);
    if (r.op == MPI_OP_NULL) return false;
    begin(c.kind);
    const bool in_place = !blocking_ || c.in == c.out || c.op.prepares();
    if (in_place) c.op.prepare(c.out, c.in, c.count);
    in_pieces(c.count, c.op, r, [&](std::size_t at, int n) {
      issue(name, blocking, started, in_place ? MPI_IN_PLACE : c.in + at, c.out + at, n, r.type, r.op);
    });
    if (c.kind != operation::exscan || rank() > 0) finish_later(c.op, c.out, c.count);
    return true;
  }

  [[nodiscard]] int rank() const noexcept { return group_.rank(); }
  [[nodiscard]] int size() const noexcept { return group_.size(); }
  [[nodiscard]] std::size_t most() const noexcept { return group_.options().most; }
  [[nodiscard]] mpi_reduction reduction_of(const reduction& op) const {
    return mpi_reduction_of(op, group_.agreed().sound);
  }

  void begin(operation kind) {
    kind_ = kind;
    group_.usable();
  }
  /// Calls MPI's function in its blocking or non-blocking form.
  template <class Blocking, class Started, class... A>
  void issue(const char* function, Blocking blocking, Started started, A... arguments) {
    const int code = blocking_ ? blocking(arguments..., group_.comm()) : started(arguments..., group_.comm(), &next());
    group_.check(code, kind_, function);
  }
  MPI_Request& next() { return keep().pending.emplace_back(MPI_REQUEST_NULL); }

  /// Calls f(offset in bytes, number of MPI's elements) for parts whose elements fit into MPI's count.
  template <class F>
  void in_pieces(std::size_t count, const reduction& op, const mpi_reduction& r, F f) const {
    if (count * r.components <= most()) return f(0, static_cast<int>(count * r.components));
    const std::size_t largest = most() / r.components;
    for (std::size_t at = 0; at < count; at += largest) {
      f(at * op.element_bytes, static_cast<int>(std::min(largest, count - at) * r.components));
    }
  }
  void reduce_to(int root, const std::byte* in, std::byte* out, std::size_t count, const reduction& op,
                 const mpi_reduction& r) {
    const bool receives = rank() == root;
#ifndef OPEN_MPI
    // In MPICH 4.0.2 MPI_Reduce of more than 2 KiB is wrong between hosts with different numbers of ranks, and reads
    // from the address MPI_IN_PLACE at a root other than 0. MPI_Ireduce is right, and takes as long at such sizes.
    if (count * op.element_bytes > 2048) blocking_ = false;
#endif
    in_pieces(count, op, r, [&](std::size_t at, int n) {
      issue("MPI_Reduce", MPI_Reduce, MPI_Ireduce, receives && in == out ? MPI_IN_PLACE : in + at,
            receives ? out + at : nullptr, n, r.type, r.op, root);
    });
  }
  mpi_kept& keep() { return kept_ ? *kept_ : kept_.emplace(); }
  /// Memory for a copy of this rank's input.
  std::byte* input(std::size_t bytes) {
    keep().input = temporary(bytes);
    return kept_->input.data();
  }
  /// A block of a uniform partition, as a special type if all blocks together are more than MPI can count: some MPIs
  /// compute the total in an int.
  [[nodiscard]] mpi_bytes block_of(const partition& blocks) const {
    const std::size_t each = blocks.bytes(0);
    return mpi_bytes(each,
                     blocks.total_bytes() <= most() ? most() : std::min(most(), std::max<std::size_t>(each / 2, 1)));
  }
  void places_of(const partition& blocks) {
    for (int q = 0; q != size(); ++q) {
      keep().counts.push_back(static_cast<int>(blocks.bytes(q)));
      keep().places.push_back(static_cast<int>(blocks.offset(q)));
    }
  }
  static void move(std::byte* to, const std::byte* from, std::size_t bytes) {
    if (to != from) copy_bytes(to, from, bytes);
  }
  void send(const std::byte* data, std::size_t bytes, int to) {
    group_.post_send(name(kind_), data, bytes, to, mpi_group::collectives, next());
  }
  void receive_from(int from, std::byte* out, const partition& blocks) {
    group_.post_recv(name(kind_), out + blocks.offset(from), blocks.bytes(from), from, mpi_group::collectives, next());
  }
  void finish_later(const reduction& op, std::byte* data, std::size_t count) {
    if (!op.scale.postscales()) return;
    if (blocking_) return op.finish(data, count);
    keep().finish = &op;
    kept_->result = data;
    kept_->count = count;
  }
  void copy_later(std::byte* to, const std::byte* from, std::size_t bytes) {
    keep().copy_to = to;
    kept_->copy_from = from;
    kept_->copy_size = bytes;
  }

  mpi_group& group_;
  bool blocking_;
  operation kind_{};
  std::optional<mpi_kept> kept_;
};

}  // namespace hvd::inline HVD_ABI::detail
