/* tests/model/cells.pml: the pipeline over three reused cells, for messages above a few lines.
 *
 * Each rank has CELLS cells with a slot for each peer. Chunks are numbered 0, 1, 2, ... over all operations; chunk j
 * uses cell j % CELLS. Two counters per rank say how many chunks it has
 *   staged    copied in: slot q of its cell holds its input for rank q,
 *   reduced   read from all peers and, in allreduce and reduce, overwritten with the result where it read the input.
 * In step t a rank stages chunk t, reduces (or just reads) chunk t - 1 and copies out chunk t - 2. An operation begins
 * with a rendezvous, the all-to-all exchange of lines.pml, abstracted here: who passes it knows that all peers have
 * completed all before.
 *
 * allreduce   stages in its own cell, pushes results into the peers' cells, copies out of its own; cells are never
 *             waited for: that they are free follows from the counters already seen. This is the claim for three cells.
 * reduce      all push, only the root copies out. stage(j) waits until all peers have reduced chunk j - 3.
 * from, to    broadcast and scatter; gather: copied instead of reduced. Only who reads a cell is waited for.
 * allgather   the same, all ranks; one word for the whole cell. Rank q writes to rank q's cells in the first three
 *             chunks, then to those of rank q + 1 for three, and so on.
 * alltoall    and reduce_scatter, whose results go straight to the output. Rank q's slot for rank r and r's for q are
 *             swapped each time around the three cells.
 * The first three chunks of an operation wait for nothing: the rendezvous covers them.
 *
 * Claim: every slot read holds what the reader expects; all ranks get to the end. With OWN (memory.pml), in operations
 * of one kind (SAME): no slot is written that others have read since the last store to it; this leaves out from and to,
 * and allgather of 3 ranks.
 *
 * Parameters: P ranks, N0 and N1 chunks of the two operations, KINDS (bit mask of operations to choose from; KINDS1: of
 * the second one), SAME, WEAK, OWN.
 * Broken on purpose: CELLS=1, CELLS=2, STAGED_FIRST, REDUCED_FIRST, STAGED_RELAXED, REDUCED_RELAXED, NO_STAGE_WAIT,
 * NO_REDUCED_WAIT (copies out without looking at `reduced`), NO_RENDEZVOUS, WAIT_ALWAYS (the waits are for chunks of
 * earlier operations, too), READERS_STAY (only writers swap and rotate), WRITERS_STAY (only readers do), FIXED (nobody
 * does).
 * Changes that do no harm: ASK_LESS (alltoall and the root of a reduce do not wait in stage, and allgather not for the
 * rank whose cell comes next); for some kinds NO_STAGE_WAIT, NO_RENDEZVOUS and CELLS=2.
 */
#ifndef P
#define P 2
#endif
#ifndef N0
#define N0 5
#endif
#ifndef N1
#define N1 4
#endif
#ifndef CELLS
#define CELLS 3
#endif
#ifndef KINDS
#define KINDS 511
#endif
#ifndef KINDS1
#define KINDS1 KINDS
#endif

#define ALLREDUCE 1
#define REDUCE0 2
#define REDUCE1 3
#define ALLGATHER 4
#define FROM0 5
#define FROM1 6
#define TO0 7
#define ALLTOALL 8
byte kind[2]; /* of the two operations; 0: not chosen yet */
#define K kind[o]

/* The bytes of rank r: slots, then counters. A slot holds which chunk it is of, whether it is input or result, and
 * who wrote it. */
#define RANK (CELLS * (P - 1) + 3)
#define BYTES (P * RANK)
#define CELL(r, j) ((r) * RANK + ((j) % CELLS) * (P - 1))
#define SLOT(r, j, q) (CELL(r, j) + ((q) + P - 1 - (r)) % P)
#define STAGED(r) ((r) * RANK + CELLS * (P - 1))
#define REDUCED(r) (STAGED(r) + 1)
#define ARRIVED(r) (STAGED(r) + 2)
#define INPUT(j, r) (2 * P * ((j) + 1) + (r))
#define RESULT(j, r) (INPUT(j, r) + P)
#define NEEDS(v, w) ((v) / (2 * P) == (w) / (2 * P))

/* Where chunk j from one rank to another lies, when cells have been swapped or have rotated `turn` times. */
#define PLACE(from, to, j, turn) (K == ALLGATHER -> CELL(((from) + (turn)) % P, j) \
                                  : (K == ALLTOALL && (turn) % 2 -> SLOT(to, j, from) : SLOT(from, j, to)))
#if defined(WRITERS_STAY) || defined(FIXED)
#define PLACE_OUT(to, j) PLACE(me, to, j, 0)
#else
#define PLACE_OUT(to, j) PLACE(me, to, j, (j) / CELLS)
#endif
#if defined(READERS_STAY) || defined(FIXED)
#define PLACE_IN(from, j) PLACE(from, me, j, 0)
#else
#define PLACE_IN(from, j) PLACE(from, me, j, (j) / CELLS)
#endif

#define FIRST (o * N0)
#define END (o == 0 -> N0 : N0 + N1)

#define IS_REDUCE (K == REDUCE0 || K == REDUCE1)
#define ROOT (K == REDUCE1 || K == FROM1)
#define STAGES(r) (!(K == FROM0 && (r) != 0) && !(K == FROM1 && (r) != 1) && !(K == TO0 && (r) == 0))
#define READS_CELLS(r) (!((K == FROM0 || K == FROM1) && (r) == ROOT) && !(K == TO0 && (r) != 0))
#define STORES_TO(q) (K == ALLGATHER -> (q) == (me == 0) : (q) != me && READS_CELLS(q))
#define PUSHES (K == ALLREDUCE || IS_REDUCE)
#define COPIES_OUT (K == ALLREDUCE || (IS_REDUCE && me == ROOT))

#ifdef WAIT_ALWAYS
#define WAIT_FROM CELLS
#else
#define WAIT_FROM (FIRST + CELLS)
#endif
#define WAITS (K != ALLREDUCE && t >= WAIT_FROM)
#ifdef ASK_LESS
#define NEEDLESS(q) (K == ALLTOALL || (K == ALLGATHER && (q) == (me + 1) % P) || (IS_REDUCE && me == ROOT))
#else
#define NEEDLESS(q) false
#endif
#define ASKS(q) (q != me && READS_CELLS(q) && !NEEDLESS(q))

#include "memory.pml"

#ifdef STAGED_RELAXED
#define publish_staged(v) store(STAGED(me), v)
#else
#define publish_staged(v) publish(STAGED(me), v)
#endif
#ifdef REDUCED_RELAXED
#define publish_reduced(v) store(REDUCED(me), v)
#else
#define publish_reduced(v) publish(REDUCED(me), v)
#endif

#define OFFER(x) :: (o == 0 -> KINDS >> x : KINDS1 >> x) & 1 -> K = x

inline choose() {
  if
  :: K == 0 ->
#ifdef SAME
     if
     :: o > 0 -> K = kind[0]
     :: else
     fi;
     if
     :: K == 0 ->
#endif
     if
     OFFER(ALLREDUCE)
     OFFER(REDUCE0)
     OFFER(REDUCE1)
     OFFER(ALLGATHER)
     OFFER(FROM0)
     OFFER(FROM1)
     OFFER(TO0)
     OFFER(ALLTOALL)
     fi
#ifdef SAME
     :: else
     fi
#endif
  :: else
  fi
}

proctype Rank(byte me) {
  byte o, t, q, at;
  bool seen;
operation:
  atomic {
    choose();
    t = FIRST;
    if
    :: o > 0 -> publish(ARRIVED(me), o)
    :: else
    fi
  }
#ifndef NO_RENDEZVOUS
  do
  :: atomic { q < P && (q == me || mem[ARRIVED(q)] >= o) -> q++ }
  :: atomic { q == P -> q = 0; break }
  od;
#endif

stage: /* chunk t */
  if
  :: atomic { !(t < END && STAGES(me)) -> goto reduce }
  :: atomic { t < END && STAGES(me) && !WAITS -> goto copy_in }
  :: atomic { t < END && STAGES(me) && WAITS }
  fi;
#ifndef NO_STAGE_WAIT
  do
  :: atomic { q < P && (!ASKS(q) || mem[REDUCED(q)] + CELLS > t) -> q++ }
  :: atomic { q == P -> q = 0; break }
  od;
#endif
copy_in:
#ifdef STAGED_FIRST
  publish_staged(t + 1);
#endif
  do
  :: atomic { q < P && !STORES_TO(q) -> q++ }
  :: atomic { q < P && STORES_TO(q) -> at = PLACE_OUT(q, t); store(at, INPUT(t, me)); at = 0; q++ }
  :: atomic { q == P -> q = 0; break }
  od;
#ifndef STAGED_FIRST
  publish_staged(t + 1);
#endif

reduce: /* or read, chunk t - 1 */
  if
  :: atomic { !(t > FIRST && t <= END && READS_CELLS(me)) -> goto copy_out }
  :: atomic { t > FIRST && t <= END && READS_CELLS(me) }
  fi;
  do
  :: atomic { q < P && (q == me || !STAGES(q)) -> q++ }
  :: atomic { q < P && q != me && STAGES(q) && !seen && mem[STAGED(q)] >= t -> seen = true }
  :: atomic { q < P && seen -> at = PLACE_IN(q, t - 1); load(at, INPUT(t - 1, q)); at = 0; seen = false; q++ }
  :: atomic { q == P -> q = 0; break }
  od;
#ifdef REDUCED_FIRST
  publish_reduced(t);
#endif
  do
  :: atomic { PUSHES && q == me -> q++ }
  :: atomic { PUSHES && q < P && q != me -> derive(SLOT(q, t - 1, me), RESULT(t - 1, me)); q++ }
  :: atomic { !PUSHES || q == P -> q = 0; break }
  od;
#ifndef REDUCED_FIRST
  publish_reduced(t);
#endif

copy_out: /* chunk t - 2 */
  if
  :: atomic { !(t > FIRST + 1 && COPIES_OUT) -> goto step }
  :: atomic { t > FIRST + 1 && COPIES_OUT }
  fi;
  do
  :: atomic { q < P && q == me -> q++ }
#ifdef NO_REDUCED_WAIT
  :: atomic { q < P && q != me && !seen -> seen = true }
#else
  :: atomic { q < P && q != me && !seen && mem[REDUCED(q)] + 1 >= t -> seen = true }
#endif
  :: atomic { q < P && seen -> load(SLOT(me, t - 2, q), RESULT(t - 2, q)); seen = false; q++ }
  :: atomic { q == P -> q = 0; break }
  od;

step:
  atomic {
    if
    :: t <= END -> t++; goto stage
    :: t > END && o == 0 -> o++; goto operation
    :: else -> t = 0
    fi
  }
}
