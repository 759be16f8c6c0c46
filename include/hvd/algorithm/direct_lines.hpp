// hvd/algorithm/direct_lines.hpp: small messages in self-validating lines: one hop, one synchronisation.
//
// Every rank that contributes writes its payload once; every rank that needs it reads it there. A line carries its
// own sequence number (as NCCL's LL protocol does with 8 bytes), so there is no flag to wait for and no barrier
// before or after: see the exchanges of peer_memory.hpp. Payload is cut into lines of 56 bytes.
#pragma once

#include <hvd/agree.hpp>

#include <cstddef>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// Points `ins` at every rank's `bytes` at `offset` of its payload, in rank order; this rank's own are at `own`.
/// `alone`: no other rank hears them.
inline void hear_inputs(peer_memory& m, const std::byte** ins, const std::byte* own, std::size_t offset,
                        std::size_t bytes, bool alone = false) {
  const bool in_place = offset == 0 && bytes <= line::capacity;  // one line: the kernel reads it where it lies
  const std::size_t stride = round_up(bytes, cache_line);
  std::byte* const scratch = in_place ? nullptr : m.scratch(static_cast<std::size_t>(m.size()) * stride);
  for (int q = 0; q != m.size(); ++q) {
    if (q == m.rank()) {
      ins[q] = own;
    } else if (in_place) {
      ins[q] = m.hear(q);
    } else {
      std::byte* const to = scratch + static_cast<std::size_t>(q) * stride;
      if (alone) {
        m.hear_and_keep(q, to, offset, bytes);
      } else {
        m.hear(q, to, offset, bytes);
      }
      ins[q] = to;
    }
  }
  m.heard_all();
}

inline void run_lines(peer_memory& m, const allreduce_call& c) {
  m.begin(describe(c).signature());
  m.publish(c.in, c.count * c.op.element_bytes);
  const std::byte** const ins = m.inputs();
  hear_inputs(m, ins, c.in, 0, c.count * c.op.element_bytes);
  c.op.complete(&c.out, 1, ins, m.size(), c.count);
  m.end();
}

inline void run_lines(peer_memory& m, const reduce_call& c) {
  m.begin(describe(c).signature());
  if (m.rank() != c.root) {
    m.publish(c.in, c.count * c.op.element_bytes);
  } else {
    const std::byte** const ins = m.inputs();
    hear_inputs(m, ins, c.in, 0, c.count * c.op.element_bytes, true);
    c.op.complete(&c.out, 1, ins, m.size(), c.count);
  }
  m.end();
}

inline void run_lines(peer_memory& m, const reduce_scatter_call& c) {
  const std::size_t offset = c.blocks.offset(m.rank());
  m.begin(describe(c).signature());
  m.publish(c.in, c.blocks.total_bytes());
  const std::byte** const ins = m.inputs();
  hear_inputs(m, ins, c.in + offset, offset, c.blocks.bytes(m.rank()));
  c.op.complete(&c.out, 1, ins, m.size(), c.blocks.count(m.rank()));
  m.end();
}

inline void run_lines(peer_memory& m, const allgather_call& c) {
  m.begin(describe(c).signature());
  m.publish(c.in, c.blocks.bytes(m.rank()));
  for (int q = 0; q != m.size(); ++q) {
    std::byte* const to = c.out + c.blocks.offset(q);
    if (q != m.rank()) {
      m.hear(q, to, 0, c.blocks.bytes(q));
    } else if (to != c.in) {
      copy_bytes(to, c.in, c.blocks.bytes(q));
    }
  }
  m.heard_all();
  m.end();
}

inline void run_lines(peer_memory& m, const broadcast_call& c) {
  m.begin(describe(c).signature());
  if (m.rank() == c.root) {
    m.publish(c.in, c.bytes);
    if (c.out != c.in) copy_bytes(c.out, c.in, c.bytes);
  } else if (m.size() == 2) {
    m.hear_and_keep(c.root, c.out, 0, c.bytes);
  } else {
    m.hear(c.root, c.out, 0, c.bytes);
  }
  m.end();
}

inline void run_lines(peer_memory& m, const gather_call& c) {
  m.begin(describe(c).signature());
  if (m.rank() != c.root) {
    m.publish(c.in, c.blocks.bytes(m.rank()));
  } else {
    for (int q = 0; q != m.size(); ++q) {
      std::byte* const to = c.out + c.blocks.offset(q);
      if (q != c.root) {
        m.hear_and_keep(q, to, 0, c.blocks.bytes(q));
      } else if (to != c.in) {
        copy_bytes(to, c.in, c.blocks.bytes(q));
      }
    }
    m.heard_all();
  }
  m.end();
}

inline void run_lines(peer_memory& m, const scatter_call& c) {
  const std::size_t offset = c.blocks.offset(m.rank());
  m.begin(describe(c).signature());
  if (m.rank() == c.root) {
    m.publish(c.in, c.blocks.total_bytes());
    if (c.out != c.in + offset) copy_bytes(c.out, c.in + offset, c.blocks.bytes(m.rank()));
  } else {
    m.hear(c.root, c.out, offset, c.blocks.bytes(m.rank()));
  }
  m.end();
}

/// Uniform blocks; others need `exchange_counts` first.
inline void run_lines(peer_memory& m, const alltoall_call& c) {
  const std::size_t bytes = c.send.bytes(0);
  m.begin(describe(c).signature());
  m.publish(c.in, c.send.total_bytes());
  for (int q = 0; q != m.size(); ++q) {
    std::byte* const to = c.out + c.recv.offset(q);
    if (q != m.rank()) {
      m.hear(q, to, c.send.offset(m.rank()), bytes);
    } else if (c.out != c.in) {
      copy_bytes(to, c.in + c.send.offset(q), bytes);
    }
  }
  m.heard_all();
  m.end();
}

/// What every rank sends to every other, for alltoall with blocks of different sizes.
struct count_matrix {
  int size = 0;
  std::vector<std::size_t> sends, receives;  // elements, [from * size + to] and [to * size + from]

  [[nodiscard]] std::size_t send(int from, int to) const {
    return sends[static_cast<std::size_t>(from) * static_cast<std::size_t>(size) + static_cast<std::size_t>(to)];
  }
  [[nodiscard]] std::size_t receive(int to, int from) const {
    return receives[static_cast<std::size_t>(to) * static_cast<std::size_t>(size) + static_cast<std::size_t>(from)];
  }
  /// Where the block for `to` starts in what `from` sends, in elements.
  [[nodiscard]] std::size_t send_offset(int from, int to) const {
    std::size_t at = 0;
    for (int q = 0; q != to; ++q) at += send(from, q);
    return at;
  }
  [[nodiscard]] std::size_t largest_total() const {
    std::size_t most = 0;
    for (int q = 0; q != size; ++q) most = std::max(most, send_offset(q, size));
    return most;
  }
  [[nodiscard]] std::size_t largest_block() const { return *std::max_element(sends.begin(), sends.end()); }
};

/// All ranks learn all counts, and throw the same mismatch error if a receiver expects another count than its sender
/// sends. Cost: two exchanges of 8 bytes a rank.
inline count_matrix exchange_counts(peer_memory& m, const alltoall_call& c, peer_memory::scope& scope) {
  const std::size_t p = static_cast<std::size_t>(m.size());
  count_matrix counts{m.size(), std::vector<std::size_t>(p * p), std::vector<std::size_t>(p * p)};
  std::vector<std::size_t> own(p);
  for (const bool sending : {true, false}) {
    auto& all = sending ? counts.sends : counts.receives;
    for (int q = 0; q != m.size(); ++q) own[static_cast<std::size_t>(q)] = (sending ? c.send : c.recv).count(q);
    const std::size_t row = p * sizeof(std::size_t);
    for (std::size_t done = 0; done < row;) {  // in one exchange, but for thousands of ranks
      const std::size_t n = std::min(row - done, m.line_capacity() / 8 * 8);
      m.begin(describe(c).signature());
      m.publish(reinterpret_cast<const std::byte*>(own.data()) + done, n);
      for (int q = 0; q != m.size(); ++q) {
        std::byte* const to = reinterpret_cast<std::byte*>(all.data() + static_cast<std::size_t>(q) * p) + done;
        if (q != m.rank()) {
          m.hear(q, to, 0, n);
        } else {
          copy_bytes(to, reinterpret_cast<const std::byte*>(own.data()) + done, n);
        }
      }
      m.heard_all();
      m.end();
      done += n;
    }
  }
  for (int from = 0; from != m.size(); ++from) {
    for (int to = 0; to != m.size(); ++to) {
      if (counts.send(from, to) == counts.receive(to, from)) continue;
      scope.leave();
      fail(error_kind::mismatch,
           {m.operation_name(), " on ", m.label(), ": rank ", from, " sends ", counts.send(from, to),
            " elements to rank ", to, ", which expects ", counts.receive(to, from)},
           to);
    }
  }
  return counts;
}

}  // namespace hvd::inline HVD_ABI::detail
