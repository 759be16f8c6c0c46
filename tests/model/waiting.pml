/* tests/model/waiting.pml: going to sleep on a counter, and waking sleepers without a fence on the fast path.
 *
 * Models hvd/shared_memory/words.hpp.
 *
 * A waiter registers in `sleepers`, reads `rings`, reads the counter again, and sleeps on `rings`, for a limited time,
 * if that still holds the value read. The publisher stores the counter, then reads `sleepers`; only if there are any it
 * increments `rings` and wakes all. The store may still be in the publisher's store buffer when it reads `sleepers`: a
 * waiter is then missed by the publisher and misses the store itself.
 *
 * Claim: every waiter gets to the end, whatever was missed, because it does not sleep for ever (ltl `progress`, with
 * weak fairness, and no deadlock).
 *
 * Parameters: P - 1 waiters, ROUNDS values published, FENCE (a fence before `sleepers` is read: then no wake-up is
 * lost and the time limit is not needed).
 * Broken on purpose: NO_TIMEOUT without FENCE; LATE_RINGS (rings read after the counter) with FENCE, NO_TIMEOUT.
 */
#ifndef P
#define P 3
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif

byte counter;  /* as the others see it */
byte buffered; /* as the publisher has stored it */
byte sleepers, rings; /* of the publisher's doorbell */
bool asleep[P]; /* in the kernel */
byte through;   /* waiters that got to the end */

/* The publisher's store buffer. */
active proctype Buffer() {
end:
  do
  :: atomic { counter < buffered -> counter++ }
  od
}

active proctype Publisher() {
  byte i;
  do
  :: buffered < ROUNDS ->
     buffered++;
#ifdef FENCE
     counter == buffered;
#endif
     if
     :: sleepers > 0 ->
        atomic { counter == buffered -> rings++ } /* an atomic read-modify-write: the buffer is empty before it */
        d_step {
          do
          :: i < P -> asleep[i] = false; i++
          :: else -> i = 0; break
          od
        }
     :: sleepers == 0
     fi
  :: else -> break
  od
}

proctype Waiter(byte me) {
  byte wanted = 1, seen;
  do
  :: wanted > ROUNDS -> through++; break
  :: wanted <= ROUNDS && counter >= wanted -> wanted++
  :: wanted <= ROUNDS && counter < wanted ->
     sleepers++;
#ifndef LATE_RINGS
     seen = rings;
#endif
     if
     :: counter < wanted ->
#ifdef LATE_RINGS
        seen = rings;
#endif
        if
        :: atomic { rings == seen -> asleep[me] = true }
           if
           :: !asleep[me]
#ifndef NO_TIMEOUT
           :: asleep[me] -> asleep[me] = false
#endif
           fi
        :: rings != seen
        fi
     :: counter >= wanted
     fi;
     seen = 0;
     sleepers--
  od
}

init {
  byte i = 1;
  atomic {
    do
    :: i < P -> run Waiter(i); i++
    :: else -> break
    od
  }
}

#ifndef BROKEN /* a broken variant is searched for the stuck state itself */
ltl progress { <> (through == P - 1) }
#endif
