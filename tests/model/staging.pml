/* tests/model/staging.pml: chunks through the staging rings, for messages longer than a line.
 *
 * Models hvd/shared_memory/staging.hpp, hvd/shared_memory/agree.hpp, hvd/algorithm/direct/staged.hpp,
 * hvd/algorithm/direct/two_shot.hpp.
 *
 * Each rank has a window with a ring of RING places, and in each place a slot for each peer. Operation o has N chunks of
 * W places. They lie behind those of the operation before, on a grid of W places; chunk k reuses the places of chunk
 * k - lap. Two counters per rank say how many chunks, counted over all operations, it has
 *   staged    copied in,
 *   reduced   read from all peers and, in two shots, overwritten with the result where it read the input.
 * In step t a rank stages chunk t, reduces (or just reads) chunk t - 1 and copies out chunk t - 2. An operation begins
 * with a rendezvous, the all-to-all exchange of lines.pml, abstracted here: who passes it knows that all peers have
 * completed all before.
 *
 * Early: a rank may stage chunk 0 before the rendezvous, which tells the others that it has. Its places must be free: at
 * that moment all peers are known to have begun the operation before, so to have completed the one before that.
 *
 * allreduce   in two shots: stages in its own window, pushes results into the peers', copies out of its own; places are
 *             never waited for: that they are free follows from the counters already seen. This is the claim for three.
 * reduce      all push, only the root copies out. stage(k) waits until all peers have reduced chunk k - lap.
 * from, to    broadcast and scatter; gather: copied instead of reduced. Only who reads is waited for.
 * allgather   and one shot: the same, all ranks; one word for all readers. What rank q writes lies in the windows of
 *             ranks q, q + 1, ... in turn, one further each time around the ring.
 * alltoall    and reduce_scatter, whose results go straight to the output. Rank q's slot for rank r and r's for q are
 *             swapped each time around.
 * With TOUCH the only reader of a slot in from and to stores what is there once more, after it has read it.
 * Operations of one lap do not say what they have read: nobody waits for it.
 *
 * Claim: every slot read holds what the reader expects; all ranks get to the end. With OWN (memory.pml), in operations
 * of one kind (SAME): no slot is written that others have read since the last store to it; this leaves out from and to
 * without TOUCH, and allgather of 3 ranks.
 *
 * Parameters: P ranks, RING, N0, N1, N2 chunks of the operations (N2 may be 0), W0, W1, W2 their places, KINDS (bit mask
 * of operations to choose from; KINDS1: of the second one, KINDS2: of the third), NOT_ALWAYS (a rank need not be early
 * where it may), SAME, WEAK, OWN.
 * Broken on purpose: RING below 3 W, STAGED_FIRST, REDUCED_FIRST, STAGED_RELAXED, REDUCED_RELAXED, NO_STAGE_WAIT,
 * NO_REDUCED_WAIT (copies out without looking at `reduced`), NO_RENDEZVOUS, WAIT_ALWAYS (the waits are for chunks of
 * earlier operations, too), READERS_STAY (only writers swap and rotate), WRITERS_STAY (only readers do), FIXED (nobody
 * does), EARLY_ALWAYS (not asked whether places are free), EARLY_LAST (the operation before is taken for completed),
 * EARLY_LATE (told before it is done), EARLY_ASSUMED (readers do not ask who was early).
 */
#ifndef P
#define P 2
#endif
#ifndef RING
#define RING 3
#endif
#ifndef N0
#define N0 5
#endif
#ifndef N1
#define N1 4
#endif
#ifndef N2
#define N2 0
#endif
#ifndef W0
#define W0 1
#endif
#ifndef W1
#define W1 W0
#endif
#ifndef W2
#define W2 W0
#endif
#ifndef KINDS
#define KINDS 510
#endif
#ifndef KINDS1
#define KINDS1 KINDS
#endif
#ifndef KINDS2
#define KINDS2 KINDS1
#endif

#define ALLREDUCE 1
#define REDUCE0 2
#define REDUCE1 3
#define ALLGATHER 4
#define FROM0 5
#define FROM1 6
#define TO0 7
#define ALLTOALL 8
byte kind[3]; /* of the operations; 0: not chosen yet */
#define K kind[o]

/* Of each operation; equal on all ranks, as they follow from the calls. */
byte first[3]; /* number of chunk 0 among all chunks */
byte begun[3]; /* position of chunk 0, counted over all turns: turn * RING + place */
byte before[3]; /* and where the chunks of the operation before end */
byte lap[3];
bool planned;
#define CHUNKS(o) (o == 0 -> N0 : (o == 1 -> N1 : N2))
#define PLACES(o) (o == 0 -> W0 : (o == 1 -> W1 : W2))
#define OPERATIONS (N2 > 0 -> 3 : (N1 > 0 -> 2 : 1))

/* Where chunk k of operation o lies, counted over all turns. */
#define PLACE_OF(o, k) (begun[o] % RING / PLACES(o) + (k))
#define POSITION(o, k) (PLACE_OF(o, k) < lap[o] -> begun[o] + (k) * PLACES(o) \
                        : (begun[o] / RING + PLACE_OF(o, k) / lap[o]) * RING + PLACE_OF(o, k) % lap[o] * PLACES(o))

inline plan() {
  byte i, next; /* next: where the last operation ended */
  do
  :: i < 3 ->
     before[i] = next;
     begun[i] = (next % RING + PLACES(i) - 1) / PLACES(i) * PLACES(i);
     begun[i] = (begun[i] + PLACES(i) <= RING -> next / RING * RING + begun[i] : (next / RING + 1) * RING);
     lap[i] = begun[i] % RING / PLACES(i) + CHUNKS(i);
     lap[i] = (lap[i] * PLACES(i) > RING -> RING / PLACES(i) : (lap[i] > 0 -> lap[i] : 1));
     if
     :: CHUNKS(i) > 0 -> next = POSITION(i, CHUNKS(i) - 1) + PLACES(i)
     :: else
     fi;
     if
     :: i < 2 -> first[i + 1] = first[i] + CHUNKS(i)
     :: else
     fi;
     i++
  :: else -> break
  od
}

#define TURN(k) (POSITION(o, k) / RING)

/* What is known to be completed before the rendezvous of operation o. */
#ifdef EARLY_LAST
#define OVER(o) before[o]
#else
#define OVER(o) (o == 0 -> 0 : before[o - 1])
#endif
#ifdef EARLY_ALWAYS
#define FREE true
#else
#define FREE (begun[o] + PLACES(o) <= OVER(o) + RING)
#endif

/* The bytes of rank r: slots, then counters. A slot holds which chunk it is of, whether it is input or result, and
 * who wrote it. */
#define RANK (RING * (P - 1) + 4)
#define BYTES (P * RANK)
#define CELL(r, k, w) ((r) * RANK + (POSITION(o, k) % RING + (w)) * (P - 1))
#define SLOT(r, k, q, w) (CELL(r, k, w) + ((q) + P - 1 - (r)) % P)
#define STAGED(r) ((r) * RANK + RING * (P - 1))
#define REDUCED(r) (STAGED(r) + 1)
#define ARRIVED(r) (STAGED(r) + 2 + o % 2)
#define INPUT(k, r) (2 * P * (first[o] + (k) + 1) + (r))
#define RESULT(k, r) (INPUT(k, r) + P)
#define NEEDS(v, w) ((v) / (2 * P) == (w) / (2 * P))

/* Where place w of chunk k from one rank to another lies, when windows have changed `turn` times. */
#define PLACE(from, to, k, w, turn) (K == ALLGATHER -> CELL(((from) + (turn)) % P, k, w) \
                                     : (K == ALLTOALL && (turn) % 2 -> SLOT(to, k, from, w) : SLOT(from, k, to, w)))
#if defined(WRITERS_STAY) || defined(FIXED)
#define PLACE_OUT(to, k, w) PLACE(me, to, k, w, 0)
#else
#define PLACE_OUT(to, k, w) PLACE(me, to, k, w, TURN(k))
#endif
#if defined(READERS_STAY) || defined(FIXED)
#define PLACE_IN(from, k, w) PLACE(from, me, k, w, 0)
#else
#define PLACE_IN(from, k, w) PLACE(from, me, k, w, TURN(k))
#endif

#define END CHUNKS(o)
#define IS_REDUCE (K == REDUCE0 || K == REDUCE1)
#define ROOT (K == REDUCE1 || K == FROM1)
#define STAGES(r) (!(K == FROM0 && (r) != 0) && !(K == FROM1 && (r) != 1) && !(K == TO0 && (r) == 0))
#define READS(r) (!((K == FROM0 || K == FROM1) && (r) == ROOT) && !(K == TO0 && (r) != 0))
#define STORES_TO(q) (K == ALLGATHER -> (q) == (me == 0) : (q) != me && READS(q))
#define ONE_WAY (K == FROM0 || K == FROM1 || K == TO0)
#define PUSHES (K == ALLREDUCE || IS_REDUCE)
#define COPIES_OUT (K == ALLREDUCE || (IS_REDUCE && me == ROOT))
#define TELLS (PUSHES || END > lap[o])

#ifdef WAIT_ALWAYS
#define WAITS (K != ALLREDUCE && first[o] + t >= lap[o])
#else
#define WAITS (K != ALLREDUCE && t >= lap[o])
#endif
#define ASKS(q) (q != me && READS(q))

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

/* An arrival says whether the rank was early. */
#define ARRIVAL(early) (2 * (o + 1) + (early))

#define OFFER(x) :: ((o == 0 -> KINDS : (o == 1 -> KINDS1 : KINDS2)) >> x) & 1 -> K = x

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
  byte o, t, q, w, at, n, early; /* early: a bit for each rank that was */
  bool seen, own, arrived;
operation:
  atomic {
    if
    :: !planned -> planned = true; plan()
    :: else
    fi;
    choose();
    t = 0;
    early = 0;
    own = false;
    arrived = false;
    if
    :: STAGES(me) && FREE && END > 0 -> own = true
#ifdef NOT_ALWAYS
    :: true
#else
    :: else
#endif
    fi
  }
#ifdef EARLY_LATE
  publish(ARRIVED(me), ARRIVAL(own));
#endif
  if
  :: atomic { own -> goto copy_in }
  :: atomic { !own }
  fi;

arrive:
  atomic {
#ifndef EARLY_LATE
    publish(ARRIVED(me), ARRIVAL(own));
#endif
    arrived = true
  }
  do
#ifdef NO_RENDEZVOUS
  :: atomic { q < P && q != me -> early = early | ((mem[ARRIVED(q)] == ARRIVAL(1)) << q); q++ }
#else
  :: atomic { q < P && q != me && mem[ARRIVED(q)] >= ARRIVAL(0) -> early = early | ((mem[ARRIVED(q)] == ARRIVAL(1)) << q); q++ }
#endif
  :: atomic { q < P && q == me -> q++ }
  :: atomic { q == P -> q = 0; break }
  od;

stage: /* chunk t */
  if
  :: atomic { !(t < END && STAGES(me)) || (t == 0 && own) -> goto reduce }
  :: atomic { t < END && STAGES(me) && !(t == 0 && own) && !WAITS -> goto copy_in }
  :: atomic { t < END && STAGES(me) && !(t == 0 && own) && WAITS }
  fi;
#ifndef NO_STAGE_WAIT
  do
  :: atomic { q < P && (!ASKS(q) || mem[REDUCED(q)] + lap[o] > first[o] + t) -> q++ }
  :: atomic { q == P -> q = 0; break }
  od;
#endif
copy_in:
#ifdef STAGED_FIRST
  atomic {
    if
    :: arrived -> n = first[o] + t + 1; publish_staged(n); n = 0
    :: else
    fi
  }
#endif
  do
  :: atomic { q < P && !STORES_TO(q) -> q++ }
  :: atomic { q < P && STORES_TO(q) ->
              at = PLACE_OUT(q, t, w); n = INPUT(t, me); store(at, n); at = 0; n = 0;
              if
              :: w + 1 < PLACES(o) -> w++
              :: else -> w = 0; q++
              fi }
  :: atomic { q == P -> q = 0; break }
  od;
  if
  :: atomic { !arrived -> goto arrive }
  :: atomic { arrived }
  fi;
#ifndef STAGED_FIRST
  atomic { n = first[o] + t + 1; publish_staged(n); n = 0 }
#endif

reduce: /* or read, chunk t - 1 */
  if
  :: atomic { !(t > 0 && t <= END && READS(me)) -> goto copy_out }
  :: atomic { t > 0 && t <= END && READS(me) }
  fi;
  do
  :: atomic { q < P && (q == me || !STAGES(q)) -> q++ }
#ifdef EARLY_ASSUMED
  :: atomic { q < P && q != me && STAGES(q) && !seen && t == 1 -> seen = true }
#endif
#define THERE(q) ((t == 1 && ((early >> (q)) & 1)) || mem[STAGED(q)] >= first[o] + t)
  :: atomic { q < P && q != me && STAGES(q) && !seen && THERE(q) -> seen = true }
  :: atomic { q < P && seen ->
              at = PLACE_IN(q, t - 1, w); n = INPUT(t - 1, q); load(at, n); at = 0; n = 0;
              if
              :: w + 1 < PLACES(o) -> w++
              :: else -> w = 0; seen = false; q++
              fi }
  :: atomic { q == P -> q = 0; break }
  od;
#ifdef REDUCED_FIRST
  atomic { n = first[o] + t; publish_reduced(n); n = 0 }
#endif
  do
  :: atomic { PUSHES && q == me -> q++ }
  :: atomic { PUSHES && q < P && q != me ->
              at = SLOT(q, t - 1, me, w); n = RESULT(t - 1, me); derive(at, n); at = 0; n = 0;
              if
              :: w + 1 < PLACES(o) -> w++
              :: else -> w = 0; q++
              fi }
#ifdef TOUCH
  :: atomic { ONE_WAY && q < P && (q == me || !STAGES(q)) -> q++ }
  :: atomic { ONE_WAY && q < P && q != me && STAGES(q) ->
              at = PLACE_IN(q, t - 1, w); n = INPUT(t - 1, q); derive(at, n); at = 0; n = 0;
              if
              :: w + 1 < PLACES(o) -> w++
              :: else -> w = 0; q++
              fi }
  :: atomic { !(PUSHES || ONE_WAY) || q == P -> q = 0; break }
#else
  :: atomic { !PUSHES || q == P -> q = 0; break }
#endif
  od;
#ifndef REDUCED_FIRST
  atomic {
    if
    :: TELLS -> n = first[o] + t; publish_reduced(n); n = 0
    :: else
    fi
  }
#endif

copy_out: /* chunk t - 2 */
  if
  :: atomic { !(t > 1 && COPIES_OUT) -> goto step }
  :: atomic { t > 1 && COPIES_OUT }
  fi;
  do
  :: atomic { q < P && q == me -> q++ }
#ifdef NO_REDUCED_WAIT
  :: atomic { q < P && q != me && !seen -> seen = true }
#else
  :: atomic { q < P && q != me && !seen && mem[REDUCED(q)] + 1 >= first[o] + t -> seen = true }
#endif
  :: atomic { q < P && seen ->
              at = SLOT(me, t - 2, q, w); n = RESULT(t - 2, q); load(at, n); at = 0; n = 0;
              if
              :: w + 1 < PLACES(o) -> w++
              :: else -> w = 0; seen = false; q++
              fi }
  :: atomic { q == P -> q = 0; break }
  od;

step:
  atomic {
    if
    :: t <= END -> t++; goto stage
    :: t > END && o + 1 < OPERATIONS -> o++; goto operation
    :: else -> t = 0; early = 0; own = false; arrived = false
    fi
  }
}
