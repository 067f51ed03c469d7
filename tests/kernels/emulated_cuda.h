// A block's threads as fibers on a CPU: what tensor cores, asynchronous copies and barriers of `tile_conv.cu` do.
// Lanes meet at every instruction of a warp, so that a lane that is missing, or late, never comes back: the test hangs.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#define EMULATED
#define __device__
#define __forceinline__ inline
#define __global__
#define __shared__ static
#define __launch_bounds__(...)
#define SHARED_MEMORY(name) u16* const name = shared_memory

using std::min;
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }

// As much as the launch asked for; what is written beyond it is noticed.
constexpr int MOST_SHARED = 120000;
static u16 shared_memory[MOST_SHARED] __attribute__((aligned(16)));
static_assert(SHARED_BYTES / 2 < MOST_SHARED, "room to notice");
static void mark_beyond() { std::fill(shared_memory + SHARED_BYTES / 2, shared_memory + MOST_SHARED, 0xa5a5); }
static void check_beyond() {
  for (int i = SHARED_BYTES / 2; i < MOST_SHARED; i++)
    if (shared_memory[i] != 0xa5a5) abort();
}

struct Index { int x, y; };
struct Fiber { ucontext_t context; char* stack; bool done; Index thread; };
static Index blockIdx, gridDim;
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static int current;
#define threadIdx (fibers[current].thread)

struct Meeting {
  int arrived = 0, generation = 0;
  void wait(int all) {
    const int mine = generation;
    if (++arrived == all) {
      arrived = 0;
      generation++;
    } else {
      while (generation == mine) swapcontext(&fibers[current].context, &scheduler);
    }
  }
};

static Meeting of_block, of_warp[32];
static const unsigned short* rows[32][32];
static unsigned a_of[32][32][4], b_of[32][32][2];
static float passed[32][32];
static int lane_number() { return threadIdx.x % 32; }
static int warp_number() { return threadIdx.x / 32; }
static void meet() { of_warp[warp_number()].wait(32); }
inline void __syncthreads() { of_block.wait(THREADS); }

inline float as_float(unsigned bits) {
  float found;
  memcpy(&found, &bits, 4);
  return found;
}
static float half_of(unsigned both, int which) { return as_float(which ? both & 0xffff0000u : both << 16); }
static unsigned rounded(float value) {
  unsigned bits;
  memcpy(&bits, &value, 4);
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
inline unsigned to_bfloat16(float low, float high) { return rounded(low) | rounded(high) << 16; }
inline float exponential(float value) { return expf(value); }

inline void load_four(unsigned (&to)[4], const unsigned short* row) {
  const int w = warp_number(), l = lane_number();
  if ((size_t)row % 16) abort();
  rows[w][l] = row;
  meet();
  for (int i = 0; i < 4; i++) memcpy(&to[i], rows[w][i * 8 + l / 4] + l % 4 * 2, 4);
  meet();
}

inline void load_four_transposed(unsigned (&to)[4], const unsigned short* row) {
  const int w = warp_number(), l = lane_number();
  if ((size_t)row % 16) abort();
  rows[w][l] = row;
  meet();
  for (int i = 0; i < 4; i++)
    to[i] = rows[w][i * 8 + l % 4 * 2][l / 4] | (unsigned)rows[w][i * 8 + l % 4 * 2 + 1][l / 4] << 16;
  meet();
}

inline void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const int w = warp_number(), l = lane_number();
  memcpy(a_of[w][l], a, 16);
  b_of[w][l][0] = b0;
  b_of[w][l][1] = b1;
  meet();
  for (int i = 0; i < 4; i++) {
    const int group = l / 4, column = l % 4 * 2 + i % 2;
    for (int k = 0; k < 16; k++)
      c[i] += half_of(a_of[w][group * 4 + k % 8 / 2][i / 2 + k / 8 * 2], k % 2) *
              half_of(b_of[w][column * 4 + k % 8 / 2][k / 8], k % 2);
  }
  meet();
}

inline void copy_chunk(unsigned short* to, const unsigned short* from, bool there) {
  if ((size_t)to % 16 || (size_t)from % 16) abort();
  if (there) memcpy(to, from, 16);
  else memset(to, 0, 16);
}
inline void end_copies() {}
template <int LEFT> inline void await_copies() {}

inline float __shfl_xor_sync(unsigned, float value, int apart) {
  const int w = warp_number(), l = lane_number();
  passed[w][l] = value;
  meet();
  const float found = passed[w][l ^ apart];
  meet();
  return found;
}

static void (*body)();
static void one_thread() {
  body();
  fibers[current].done = true;
  swapcontext(&fibers[current].context, &scheduler);
}

static void run_blocks(int across, int down) {
  constexpr int STACK = 1 << 16;
  gridDim = {across, down};
  mark_beyond();
  fibers.resize(THREADS);
  for (auto& fiber : fibers)
    if (!fiber.stack) fiber.stack = (char*)malloc(STACK);
  for (int number = 0; number < across * down; number++) {
    blockIdx = {number % across, number / across};
    of_block = Meeting();
    for (auto& meeting : of_warp) meeting = Meeting();
    for (int i = 0; i < THREADS; i++) {
      auto& fiber = fibers[i];
      fiber.done = false;
      fiber.thread = {i, 0};
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack;
      fiber.context.uc_stack.ss_size = STACK;
      fiber.context.uc_link = nullptr;
      makecontext(&fiber.context, one_thread, 0);
    }
    for (bool any = true; any;) {
      any = false;
      for (current = 0; current < THREADS; current++)
        if (!fibers[current].done) {
          any = true;
          swapcontext(&scheduler, &fibers[current].context);
        }
    }
  }
  check_beyond();
}
