// hvd/fusion/buffered.hpp: batches of tensors through a buffer: pack, one collective, unpack.
//
// For transports without common memory; on ranks with common memory for small batches, and for messages (Adasum).
#pragma once

#include <hvd/algorithm/adasum.hpp>
#include <hvd/fusion/pack.hpp>
#include <hvd/shared_array.hpp>
#include <hvd/transport.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// A round is as many tensors as fit into the buffer. A tensor that does not fit, or is alone in its round, travels
/// without the buffer if it is not converted.
template <Transport T>
class buffered_fusion {
  static_assert(memory_of<T> == memory_kind::host, "hvd: to fuse tensors on a GPU, include hvd/gpu.hpp");

 public:
  buffered_fusion(T& comm, std::size_t most) : threshold(most), comm_(comm) {}

  std::size_t threshold;
  [[nodiscard]] std::size_t bytes() const noexcept { return buffer_.size(); }
  void release() noexcept { buffer_ = {}; }

  /// `ops[i]` is for vectors[i].
  void allreduce(std::span<const fused>, std::span<const fused_vector> vectors, std::span<const reduction> ops) {
    for (std::size_t i = 0; i != vectors.size(); ++i) allreduce(vectors[i], ops[i]);
  }

  /// Each part is a tensor with factors of its own; there are no gaps.
  void adasum(std::span<const fused_vector> vectors, std::span<const reduction> ops)
    requires PointToPoint<T>
  {
    for (std::size_t i = 0; i != vectors.size(); ++i) adasum(vectors[i], ops[i]);
  }

  /// A vector of bytes.
  void broadcast(std::span<const fused>, const fused_vector& v, int root) {
    each_round(v, [&](std::size_t first, std::size_t last) {
      if (last - first == 1) {
        const fused_part& p = v.parts[first];
        return run(comm_, broadcast_call{p.in, p.out, p.count, root}, automatic<>{});
      }
      const std::size_t bytes = v.parts[last - 1].end() - v.parts[first].start;
      std::byte* const buffer = reserve(bytes);
      if (comm_.rank() == root) pack(v, first, last, buffer);
      run(comm_, broadcast_call{buffer, buffer, bytes, root, hash_of(v, first, last)}, automatic<>{});
      unpack(v, first, last, buffer);
    });
  }

  /// Block r of the buffer has rank r's part of all tensors.
  void allgather(std::span<const fused> batch, std::span<const std::vector<std::size_t>> counts) {
    const std::size_t ranks = static_cast<std::size_t>(comm_.size()), own = static_cast<std::size_t>(comm_.rank());
    std::vector<std::size_t> sizes(ranks), done;
    const auto bytes = [&](std::size_t i, std::size_t r) { return counts[i][r] * size_of(batch[i].type); };
    const auto total = [&](std::size_t i) { return sum_of(counts[i], ranks) * size_of(batch[i].type); };
    each_round(batch.size(), total, [&](std::size_t first, std::size_t last) {
      for (std::size_t r = 0; r != ranks; ++r) {
        sizes[r] = 0;
        for (std::size_t i = first; i != last; ++i) sizes[r] += bytes(i, r);
      }
      const partition blocks = partition_of(sizes, 1);
      if (blocks.total_bytes() == 0) return;
      if (last - first == 1) {
        return run(comm_, allgather_call{batch[first].in, batch[first].out, blocks}, automatic<>{});
      }
      std::byte* const buffer = reserve(blocks.total_bytes());
      std::byte* to = buffer + blocks.offset(comm_.rank());
      for (std::size_t i = first; i != last; ++i) {
        copy_bytes(to, batch[i].in, bytes(i, own));
        to += bytes(i, own);
      }
      run(comm_, allgather_call{buffer + blocks.offset(comm_.rank()), buffer, blocks}, automatic<>{});
      done.assign(last - first, 0);
      const std::byte* from = buffer;
      for (std::size_t r = 0; r != ranks; ++r) {
        for (std::size_t i = first; i != last; ++i) {
          copy_bytes(batch[i].out + done[i - first], from, bytes(i, r));
          done[i - first] += bytes(i, r);
          from += bytes(i, r);
        }
      }
    });
  }

  /// counts[i] is for tensor i of the batch, ops[i] for vectors[i].
  void reduce_scatter(std::span<const fused>, std::span<const std::vector<std::size_t>> counts,
                      std::span<const fused_vector> vectors, std::span<const reduction> ops) {
    for (std::size_t i = 0; i != vectors.size(); ++i) reduce_scatter(vectors[i], ops[i], counts);
  }

 protected:
  T& comm_;

 private:
  void allreduce(const fused_vector& v, const reduction& op) {
    const fused_reduction parts(op, v.converts(), PeerMemory<T>);
    each_round(v, [&](std::size_t first, std::size_t last) {
      const fused_part& p = v.parts[first];
      if (last - first == 1 && !v.converts()) {
        return run(comm_, allreduce_call{p.in, p.out, p.count, op}, automatic<>{});
      }
      const std::uint64_t list = hash_of(v, first, last);
      const auto call = [&](std::byte* buffer, std::size_t count) {
        run(comm_, allreduce_call{buffer, buffer, count, parts.inner, list}, automatic<>{});
      };
      const std::size_t count = v.parts[last - 1].end() - p.start;
      const std::size_t most = std::max(threshold, least_piece) / v.unit;
      std::byte* const buffer = reserve(std::min(count, most) * v.unit);
      if (count <= most) {
        pack(v, first, last, buffer, &parts.outer);
        call(buffer, count);
        return unpack(v, first, last, buffer, &parts.outer);
      }
      for (std::size_t done = 0, n = 0; done != p.count; done += n) {
        n = std::min(most, p.count - done);
        v.pack(buffer, p, done, n, &parts.outer);
        call(buffer, n);
        v.unpack(p, done, n, buffer, &parts.outer);
      }
    });
  }

  void adasum(const fused_vector& v, const reduction& op)
    requires PointToPoint<T>
  {
    const fused_reduction parts(op, v.converts(), false);
    std::vector<std::size_t> lengths;
    each_round(v, [&](std::size_t first, std::size_t last) {
      const fused_part& p = v.parts[first];
      if (last - first == 1 && !v.converts()) {
        return run(comm_, allreduce_call{p.in, p.out, p.count, op}, hvd::adasum{});
      }
      const std::size_t count = v.parts[last - 1].end() - p.start;
      std::byte* const buffer = reserve(count * v.unit);
      lengths.clear();
      for (std::size_t i = first; i != last; ++i) lengths.push_back(v.parts[i].count);
      pack(v, first, last, buffer, &parts.outer);
      run(comm_, allreduce_call{buffer, buffer, count, parts.inner}, hvd::adasum{lengths});
      unpack(v, first, last, buffer, &parts.outer);
    });
  }

  /// Block r of the buffer has the part of all tensors that rank r gets.
  void reduce_scatter(const fused_vector& v, const reduction& op, std::span<const std::vector<std::size_t>> counts) {
    const std::size_t ranks = static_cast<std::size_t>(comm_.size()), own = static_cast<std::size_t>(comm_.rank());
    const fused_reduction parts(op, v.converts(), PeerMemory<T>);
    std::vector<std::size_t> sizes(ranks), done;
    each_round(v, [&](std::size_t first, std::size_t last) {
      for (std::size_t r = 0; r != ranks; ++r) {
        sizes[r] = 0;
        for (std::size_t i = first; i != last; ++i) sizes[r] += counts[v.parts[i].index][r];
      }
      const partition blocks = partition_of(sizes, v.unit);
      const fused_part& p = v.parts[first];
      if (last - first == 1 && !v.converts()) {
        return run(comm_, reduce_scatter_call{p.in, p.out, blocks, op}, automatic<>{});
      }
      std::byte* const buffer = reserve(blocks.total_bytes());
      std::byte* to = buffer;
      done.assign(last - first, 0);
      for (std::size_t r = 0; r != ranks; ++r) {
        for (std::size_t i = first; i != last; ++i) {
          const std::size_t n = counts[v.parts[i].index][r];
          v.pack(to, v.parts[i], done[i - first], n, &parts.outer);
          done[i - first] += n;
          to += n * v.unit;
        }
      }
      std::byte* const result = buffer + blocks.offset(comm_.rank());
      run(comm_, reduce_scatter_call{buffer, result, blocks, parts.inner}, automatic<>{});
      const std::byte* from = result;
      for (std::size_t i = first; i != last; ++i) {
        const std::size_t n = counts[v.parts[i].index][own];
        v.unpack(v.parts[i], 0, n, from, &parts.outer);
        from += n * v.unit;
      }
    });
  }

  /// The least number of bytes of a part, if a tensor is converted in parts.
  static constexpr std::size_t least_piece = std::size_t{64} << 10;

  /// The buffer is memory from alloc_shared if the transport has it, but not on ranks with common memory, which use it
  /// only for messages and small collectives. It doubles up to the threshold, and grows beyond only for a single tensor
  /// that must be packed whole.
  std::byte* reserve(std::size_t bytes) {
    if (bytes <= buffer_.size()) return buffer_.data();
    const std::size_t wanted = std::min(std::max(threshold, bytes), std::bit_ceil(bytes));
    release();
    if constexpr (!PeerMemory<T> && requires { comm_.template alloc_shared<std::byte>(wanted); }) {
      buffer_ = comm_.template alloc_shared<std::byte>(wanted);
    } else {
      const auto memory = std::make_shared<temporary>(wanted);
      buffer_ = {memory->data(), wanted, memory};
    }
    return buffer_.data();
  }

  /// Calls f(first, last) for as many of n items as fit into the buffer together; an item that does not fit goes alone.
  template <class Bytes, class F>
  void each_round(std::size_t n, const Bytes& bytes, const F& f) {
    for (std::size_t i = 0, j = 0; i != n; i = j) {
      std::size_t room = threshold;
      for (j = i; j != n; ++j) {
        const std::size_t wanted = round_up(bytes(j), cache_line);
        if (j != i && wanted > room) break;
        room -= std::min(room, wanted);
      }
      f(i, j);
    }
  }
  template <class F>
  void each_round(const fused_vector& v, const F& f) {
    each_round(
        v.parts.size(), [&](std::size_t i) { return v.parts[i].count * v.unit; }, f);
  }

  /// Of the lengths of parts [first, last); never 0.
  static std::uint64_t hash_of(const fused_vector& v, std::size_t first, std::size_t last) {
    std::uint64_t h = last - first;
    for (std::size_t i = first; i != last; ++i) h = mix(h, v.parts[i].count);
    return h | 1;
  }

  /// Copies parts [first, last) to and from the buffer. Gaps become zeros: they are reduced with the rest.
  void pack(const fused_vector& v, std::size_t first, std::size_t last, std::byte* buffer,
            const reduction* op = nullptr) {
    std::size_t at = v.parts[first].start;
    for (std::size_t i = first; i != last; ++i) {
      const fused_part& p = v.parts[i];
      std::memset(buffer, 0, (p.start - at) * v.unit);
      buffer += (p.start - at) * v.unit;
      v.pack(buffer, p, 0, p.count, op);
      buffer += p.count * v.unit;
      at = p.end();
    }
  }
  void unpack(const fused_vector& v, std::size_t first, std::size_t last, const std::byte* buffer,
              const reduction* op = nullptr) {
    for (std::size_t i = first; i != last; ++i) {
      const fused_part& p = v.parts[i];
      v.unpack(p, 0, p.count, buffer + (p.start - v.parts[first].start) * v.unit, op);
    }
  }

  shared_array<std::byte> buffer_;
};

}  // namespace hvd::inline HVD_ABI::detail
