/* tests/model/p2p.pml: point-to-point channels, rings of two slots with one writer and one reader.
 *
 * Models hvd/shared_memory/messages.hpp.
 *
 * Channel r goes from rank r to rank (r + 1) % P. The writer waits for sent - taken < SLOTS, writes payload and message
 * length of slot sent % SLOTS, then stores the slot's stamp, sent + 1; the reader waits until the stamp of slot
 * taken % SLOTS is greater than taken, reads the slot, then publishes taken + 1. All ranks exchange FRAGMENTS fragments
 * at the same time: each sends or receives whichever it can.
 *
 * Claim: fragments arrive whole and in order; all ranks get to the end.
 *
 * Parameters: P ranks, FRAGMENTS, WEAK (memory.pml).
 * Broken on purpose: STAMP_FIRST, STAMP_RELAXED, TAKEN_FIRST, NO_ROOM_CHECK, SEND_ALL_FIRST.
 */
#ifndef P
#define P 2
#endif
#ifndef FRAGMENTS
#define FRAGMENTS 3
#endif
#define SLOTS 2

/* The bytes of channel c: payload, length and stamp of each slot, and the reader's taken. Payload and length hold the
 * number of their fragment, from 1. */
#define CHANNEL (3 * SLOTS + 1)
#define BYTES (P * CHANNEL)
#define PAYLOAD(c, i) ((c) * CHANNEL + 3 * ((i) % SLOTS))
#define LENGTH(c, i) (PAYLOAD(c, i) + 1)
#define STAMP(c, i) (PAYLOAD(c, i) + 2)
#define TAKEN(c) ((c) * CHANNEL + 3 * SLOTS)
#define OUT me
#define IN ((me + P - 1) % P)

#include "memory.pml"

#ifdef STAMP_RELAXED
#define publish_stamp() store(STAMP(OUT, sent), sent + 1)
#else
#define publish_stamp() publish(STAMP(OUT, sent), sent + 1)
#endif
#ifdef NO_ROOM_CHECK
#define ROOM true
#else
#define ROOM (sent < mem[TAKEN(OUT)] + SLOTS)
#endif
#ifdef SEND_ALL_FIRST
#define MAY_RECEIVE (sent == FRAGMENTS)
#else
#define MAY_RECEIVE true
#endif

proctype Rank(byte me) {
  byte sent, taken;
  do
  :: sent < FRAGMENTS && ROOM ->
#ifdef STAMP_FIRST
     publish_stamp();
#endif
     store(PAYLOAD(OUT, sent), sent + 1);
     store(LENGTH(OUT, sent), sent + 1);
#ifndef STAMP_FIRST
     publish_stamp();
#endif
     sent++
  :: taken < FRAGMENTS && mem[STAMP(IN, taken)] > taken && MAY_RECEIVE ->
#ifdef TAKEN_FIRST
     publish(TAKEN(IN), taken + 1);
#endif
     load(LENGTH(IN, taken), taken + 1);
     load(PAYLOAD(IN, taken), taken + 1);
#ifndef TAKEN_FIRST
     publish(TAKEN(IN), taken + 1);
#endif
     taken++
  :: sent == FRAGMENTS && taken == FRAGMENTS -> break
  od
}
