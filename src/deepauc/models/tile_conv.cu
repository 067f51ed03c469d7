// 3x3 convolutions of few channels, stride 1, padding 1, on NHWC bfloat16; compiled by `tile_conv` with macros for the form.
//
// A block takes TH x TW pixels of an image with their border into shared memory once; the nine taps are nine shifted
// readings of it: for one tap, a convolution is the product of (pixels, input channels) and (input channels, output
// channels), and the nine products are added up. bfloat16 numbers are u16 here, two of them a u32, the first one low.
//
// Products are m16n8k16 of tensor cores: 16 pixels, 8 output channels, 16 input channels, by the 32 lanes of a warp
// together. Of a result (16 x 8, float32) group g = lane / 4 and its member t = lane % 4 hold rows g, g + 8 and columns
// 2t, 2t + 1. `ldmatrix` (load_four) fetches the operands as four 8 x 8 matrices: lane l gives the address of row l % 8 of
// matrix l / 8, and gets two numbers of each. Which output channel is which column is ours to choose: channel
// 2 TILES t + 2 j + e is column 2t + e of result j, so that a thread has C / 4 channels in a row and can write them at once.
//
// Shared memory has 32 banks of 4 bytes, and ldmatrix reads eight rows of 16 bytes (a chunk) at a time. Rows of C numbers
// would begin in the same few banks and wait for each other; rows of C + 8 numbers do not.
//
// Macros: C channels, in and out; HEIGHT x WIDTH images; TH x TW a tile; THREADS a block, BLOCKS of which are to fit on a
// multiprocessor; EACH tiles a block, one after the other. CONV: ROWS of 16 pixels a warp multiplies at a time; FLIP, MOMENTS,
// NORM, EXTRA, ACTIVATED, ELU are told at the kernel. GRADIENT: OUTS, TAPS, JOINED, told there too.

typedef unsigned int u32;
typedef unsigned short u16;

constexpr int CHUNKS = C / 8;           // of a pixel: 8 numbers each, what one asynchronous copy moves
constexpr int TILES = C / 8;            // of 8 channels in a product's result
constexpr int SIDE = TW + 2;            // a line of a tile with its border
constexpr int PIXELS = TH * TW;
constexpr int BORDERED = (TH + 2) * SIDE;
constexpr int ROW = C + 8;              // a row of C numbers and what keeps the next ones in other banks
constexpr int MINE = C / 4;             // channels of a thread
constexpr int WARPS = THREADS / 32;
constexpr int ACROSS = WIDTH / TW;      // tiles in a line of them,
constexpr int AN_IMAGE = ACROSS * (HEIGHT / TH);  // and in an image
static_assert(HEIGHT % TH == 0 && WIDTH % TW == 0 && TW % 8 == 0 && TW * CHUNKS % 32 == 0, "tiles fill an image");

// Where channel c lies among the columns of all results.
__device__ __forceinline__ int column(int c) { return c / 2 % TILES * 8 + c / (2 * TILES) * 2 + c % 2; }

// What only a GPU has; a test defines EMULATED and brings the same functions for a CPU.
#ifndef EMULATED
#define SHARED_MEMORY(name) extern __shared__ __align__(16) u16 name[]

__device__ __forceinline__ u32 shared_address(const u16* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void load_four(u32 (&to)[4], const u16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(row)) : "memory");
}

__device__ __forceinline__ void load_four_transposed(u32 (&to)[4], const u16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(row)) : "memory");
}

__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 bytes from global to shared memory while the threads go on; both must be aligned to 16. Not there: zeros, and
// `from` is not read.
__device__ __forceinline__ void copy_chunk(u16* to, const u16* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}

// Copies since the last end_copies are a batch; await_copies waits until no more than LEFT batches are under way.
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void await_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

__device__ __forceinline__ u32 to_bfloat16(float low, float high) {
  u32 both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

__device__ __forceinline__ float as_float(u32 bits) { return __uint_as_float(bits); }
__device__ __forceinline__ float exponential(float v) { return __expf(v); }
#endif

__device__ __forceinline__ float low_half(u32 both) { return as_float(both << 16); }
__device__ __forceinline__ float high_half(u32 both) { return as_float(both & 0xffff0000u); }

// The MINE channels of one pixel that this thread has.
struct Mine { u32 pair[MINE / 2]; };

__device__ __forceinline__ Mine read_mine(const u16* from) {
  Mine m;
#if C == 16
  *(uint2*)m.pair = *(const uint2*)from;
#else
#pragma unroll
  for (int i = 0; i < MINE / 8; i++) ((uint4*)m.pair)[i] = ((const uint4*)from)[i];
#endif
  return m;
}

__device__ __forceinline__ void write_mine(u16* to, const Mine& m) {
#if C == 16
  *(uint2*)to = *(const uint2*)m.pair;
#else
#pragma unroll
  for (int i = 0; i < MINE / 8; i++) ((uint4*)to)[i] = ((const uint4*)m.pair)[i];
#endif
}

// Where a tile begins: line and column in its image, the image's first pixel and its own among all pixels.
struct Place { int top, left; long image, first; };

__device__ __forceinline__ Place locate(int number) {
  const int inside = number % AN_IMAGE, top = inside / ACROSS * TH, left = inside % ACROSS * TW;
  const long image = (long)(number / AN_IMAGE) * (HEIGHT * WIDTH);
  return {top, left, image, image + top * WIDTH + left};
}

// A tile with a border of one pixel, 0 outside of the image: a line of the tile a warp, whose lanes have neighbouring chunks,
// then the two columns beside it. `image` is long: a batch may have more than 2^31 numbers, an image has not.
__device__ __forceinline__ void copy_tile(u16* tile, const u16* x, const Place& at) {
  const u16* image = x + at.image * C;
  const int top = at.top, left = at.left;
  constexpr int LINE = TW * CHUNKS;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < (TH + 1 + WARPS) / WARPS; i++) {
    const int line = i * WARPS + threadIdx.x / 32, y = top - 1 + line;
    if (line >= TH + 2) break;
    const bool there = y >= 0 && y < HEIGHT;
    const u16* from = image + (there ? (y * WIDTH + left) * C : 0) + lane * 8;
    u16* to = tile + (line * SIDE + 1 + lane / CHUNKS) * ROW + lane % CHUNKS * 8;
#pragma unroll
    for (int j = 0; j < LINE / 32; j++) copy_chunk(to + j * (32 / CHUNKS) * ROW, from + j * 256, there);
  }
  for (int i = threadIdx.x; i < 2 * (TH + 2) * CHUNKS; i += THREADS) {
    const int line = i / (2 * CHUNKS), right = i / CHUNKS % 2, chunk = i % CHUNKS;
    const int y = top - 1 + line, x = right ? left + TW : left - 1;
    const bool there = y >= 0 && y < HEIGHT && x >= 0 && x < WIDTH;
    copy_chunk(tile + (line * SIDE + right * (TW + 1)) * ROW + chunk * 8, image + (there ? (y * WIDTH + x) * C : 0) + chunk * 8, there);
  }
}

#ifdef CONV
static_assert(PIXELS % (16 * WARPS * ROWS) == 0, "warps share a tile evenly");

// y = convolution of x; FLIP: of dy with the taps turned round and the channels exchanged, which is its transpose.
// MOMENTS: also mean of this block's y and sum of squares around it, [block, 2, C]. NORM: y is the gradient of an
// activation; it goes on to that before the activation, and what is kept are sums for the norm (`before_activation`).
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
tile_conv(const u16* x, const float* weight, u16* y, float* moments, const u16* extra, const u16* activated,
          const u16* before, const float* mean, const float* rstd, const float* gain, const float* offset,
          int tiles) {
  SHARED_MEMORY(memory);  // weights, tiles in turn
  u16* const taps = memory;
  u16* const loaded = memory + 9 * C * ROW;
  __shared__ float reduced[WARPS][2][C];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, member = lane % 4;
  const int begin = blockIdx.x * EACH, end = min(begin + EACH, tiles);

  // The first tile is on its way while the weights are rounded: taps[tap][column of output channel][input channel], or, to
  // FLIP, taps[tap][output channel][column of input channel], as the roles of the channels are exchanged.
  copy_tile(loaded, x, locate(begin));
  end_copies();
  constexpr int FOURS = 9 * C * C / 4, AT_ONCE = 9;
#pragma unroll AT_ONCE
  for (int first = 0; first < FOURS; first += THREADS) {  // four of weight[o, tap, i]
    const int i = first + threadIdx.x;
    if (FOURS % THREADS && i >= FOURS) break;
    const float4 w = ((const float4*)weight)[i];
    const int in = i * 4 % C, tap = i * 4 / C % 9, o = i * 4 / (9 * C);
#if FLIP
    u16* to = taps + (tap * C + o) * ROW;
    *(u32*)(to + column(in)) = to_bfloat16(w.x, w.y);
    *(u32*)(to + column(in + 2)) = to_bfloat16(w.z, w.w);
#else
    u16* to = taps + (tap * C + column(o)) * ROW + in;
    *(uint2*)to = make_uint2(to_bfloat16(w.x, w.y), to_bfloat16(w.z, w.w));
#endif
  }
  __syncthreads();

  float sums[MINE], products[MINE];
#if NORM
  float centre[MINE];
#if !ACTIVATED
  float factor[MINE], shift[MINE];
#endif
#endif
#pragma unroll
  for (int i = 0; i < MINE; i++) {
    sums[i] = products[i] = 0;
#if NORM
    centre[i] = mean[MINE * member + i];
#if !ACTIVATED
    factor[i] = gain[MINE * member + i] * rstd[MINE * member + i];
    shift[i] = offset[MINE * member + i];
#endif
#endif
  }

  // One tap's weights, 16 input channels from 16 k on, for all output channels: b[j / 2] has what results j and j + 1 need.
  auto load_taps = [&](u32 (&b)[TILES / 2][4], int tap, int k) {
#pragma unroll
    for (int j = 0; j < TILES; j += 2) {
#if FLIP
      load_four_transposed(b[j / 2], taps + ((8 - tap) * C + k * 16 + lane % 16) * ROW + (j + lane / 16) * 8);
#else
      load_four(b[j / 2], taps + (tap * C + (j + lane / 16) * 8 + lane % 8) * ROW + (2 * k + lane / 8 % 2) * 8);
#endif
    }
  };
#if C == 16  // few enough to stay in registers for all tiles
  u32 kept[9][TILES / 2][4];
#pragma unroll
  for (int tap = 0; tap < 9; tap++) load_taps(kept[tap], tap, 0);
#endif

  // Two tiles in turn: the next is copied while this one is multiplied.
#pragma unroll 1
  for (int number = begin; number < end; number++) {
    const Place here = locate(number);
    const u16* tile = loaded + (number - begin) % 2 * BORDERED * ROW;
    if (number + 1 < end) {
      copy_tile(loaded + (number + 1 - begin) % 2 * BORDERED * ROW, x, locate(number + 1));
      end_copies();
      await_copies<1>();
    } else {
      await_copies<0>();
    }
    __syncthreads();
#pragma unroll 1
    for (int step = 0; step < PIXELS / 16 / (WARPS * ROWS); step++) {
      const int first = (step * WARPS + warp) * ROWS;
      float total[ROWS][TILES][4];
      const u16* under[ROWS];  // the pixel of this lane's row under the first tap; other taps are a fixed way from there
#pragma unroll
      for (int m = 0; m < ROWS; m++) {
        const int q = (first + m) * 16 + lane % 16;
        under[m] = tile + (q / TW * SIDE + q % TW) * ROW + lane / 16 * 8;
#pragma unroll
        for (int j = 0; j < TILES; j++) total[m][j][0] = total[m][j][1] = total[m][j][2] = total[m][j][3] = 0;
      }
#pragma unroll
      for (int tap = 0; tap < 9; tap++) {
#pragma unroll
        for (int k = 0; k < C / 16; k++) {
#if C == 16
          u32 (&b)[TILES / 2][4] = kept[tap];
#else
          u32 b[TILES / 2][4];
          load_taps(b, tap, k);
#endif
#pragma unroll
          for (int m = 0; m < ROWS; m++) {
            u32 a[4];
            load_four(a, under[m] + (tap / 3 * SIDE + tap % 3) * ROW + k * 16);
#pragma unroll
            for (int j = 0; j < TILES; j++) multiply(total[m][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
          }
        }
      }
#pragma unroll
      for (int m = 0; m < ROWS; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
          int q = (first + m) * 16 + group + 8 * half;
          const long at = (here.first + q / TW * WIDTH + q % TW) * C + MINE * member;
          float value[MINE];
#pragma unroll
          for (int i = 0; i < MINE; i++) value[i] = total[m][i / 2][2 * half + i % 2];
#if NORM
          Mine source = read_mine(before + at);
#if EXTRA
          Mine more = read_mine(extra + at);
#endif
#if ACTIVATED
          Mine result = read_mine(activated + at);
#endif
          float centred[MINE];
#pragma unroll
          for (int i = 0; i < MINE; i++) {
            u32 both = source.pair[i / 2];
            centred[i] = (i % 2 ? high_half(both) : low_half(both)) - centre[i];
#if EXTRA
            value[i] += i % 2 ? high_half(more.pair[i / 2]) : low_half(more.pair[i / 2]);
#endif
#if ACTIVATED
            float out = i % 2 ? high_half(result.pair[i / 2]) : low_half(result.pair[i / 2]);
            value[i] *= out > 0 ? 1.0f : ELU ? out + 1.0f : 0.0f;
#else
            float out = centred[i] * factor[i] + shift[i];
            value[i] *= out > 0 ? 1.0f : ELU ? exponential(out) : 0.0f;
#endif
          }
#endif
          Mine rounded;  // sums are of what is written, not of what it was before rounding
#pragma unroll
          for (int i = 0; i < MINE; i += 2) {
            u32 both = rounded.pair[i / 2] = to_bfloat16(value[i], value[i + 1]);
            float v = low_half(both), w = high_half(both);
            sums[i] += v;
            sums[i + 1] += w;
#if NORM
            products[i] += v * centred[i];
            products[i + 1] += w * centred[i + 1];
#else
            products[i] += v * v;
            products[i + 1] += w * w;
#endif
          }
          write_mine(y + at, rounded);
        }
      }
    }
    if (number + 1 < end) __syncthreads();  // before the next but one is written over this
  }

#if MOMENTS || NORM
  // Always in the same order, so that a run repeats to the bit: over the groups of a warp, then over the warps.
#pragma unroll
  for (int i = 0; i < MINE; i++)
#pragma unroll
    for (int apart = 4; apart < 32; apart *= 2) {
      sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], apart);
      products[i] += __shfl_xor_sync(0xffffffffu, products[i], apart);
    }
  if (group == 0)
#pragma unroll
    for (int i = 0; i < MINE; i++) {
      reduced[warp][0][MINE * member + i] = sums[i];
      reduced[warp][1][MINE * member + i] = products[i];
    }
  __syncthreads();
  if (threadIdx.x < C) {
    int c = threadIdx.x;
    float plain = 0, times = 0;
    for (int w = 0; w < WARPS; w++) {
      plain += reduced[w][0][c];
      times += reduced[w][1][c];
    }
    float* to = moments + (long)blockIdx.x * 2 * C + c;
#if NORM
    to[0] = plain;
    to[C] = times * rstd[c];
#else
    const float mean_here = plain / ((end - begin) * PIXELS);
    to[0] = mean_here;
    to[C] = times - plain * mean_here;
#endif
  }
#endif
}
#endif

#ifdef GRADIENT
// sums[block, o, tap, i] = sum over this block's pixels of dy[pixel, o] x[pixel under the tap, i].
// A block has OUTS output channels (blockIdx.y says which) and goes through EACH tiles. Its warps share the work by
// output channels, 16 a warp, and by taps, TAPS a warp; with fewer channels also by pixels, then added up in turn.
constexpr int BY_OUT = OUTS / 16, BY_TAP = 9 / TAPS, BY_PIXEL = WARPS / (BY_OUT * BY_TAP);
static_assert(BY_OUT * BY_TAP * BY_PIXEL == WARPS && PIXELS % (16 * BY_PIXEL) == 0, "warps share the work evenly");
constexpr int LOADED = BORDERED * ROW + PIXELS * C;
constexpr int SHIFT = CHUNKS == 2 ? 2 : CHUNKS == 4 ? 1 : 0;

// Of a chunk of dy, whose rows are not lengthened, as that memory is short here: chunks change places within rows, in
// another way in each, so that the same chunk of eight rows in a row lies in different banks.
__device__ __forceinline__ int place(int row, int chunk) {
  return (row * CHUNKS + (chunk ^ ((row >> SHIFT) & (CHUNKS - 1)))) * 8;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
tile_weight_gradient(const u16* x, const u16* dy, float* sums, int tiles) {
  SHARED_MEMORY(loaded);  // two tiles of x and dy in turn
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / 4, member = lane % 4;
  const int part = warp % BY_PIXEL, of_tap = warp / BY_PIXEL % BY_TAP * TAPS, of_out = warp / (BY_PIXEL * BY_TAP) * 16;
  const int outs = blockIdx.y * OUTS;
  const int begin = blockIdx.x * EACH, end = min(begin + EACH, tiles);

  auto fetch = [&](int number, int buffer) {
    const Place at = locate(number);
    u16* tile = loaded + buffer * LOADED;
    copy_tile(tile, x, at);
    u16* gradients = tile + BORDERED * ROW;
    const u16* from = dy + at.first * C;
#pragma unroll
    for (int i = 0; i < (PIXELS * CHUNKS + THREADS - 1) / THREADS; i++) {
      const int c = i * THREADS + threadIdx.x, q = c / CHUNKS, chunk = c % CHUNKS;
      if (PIXELS * CHUNKS % THREADS && q >= PIXELS) break;
      copy_chunk(gradients + place(q, chunk), from + (q / TW * WIDTH + q % TW) * C + chunk * 8, true);
    }
    end_copies();
  };

  float total[TAPS][TILES][4];
#pragma unroll
  for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
    for (int j = 0; j < TILES; j++) total[tap][j][0] = total[tap][j][1] = total[tap][j][2] = total[tap][j][3] = 0;

  fetch(begin, 0);
#pragma unroll 1
  for (int number = begin; number < end; number++) {
    const int buffer = (number - begin) % 2;
    if (number + 1 < end) {
      fetch(number + 1, 1 - buffer);
      await_copies<1>();
    } else {
      await_copies<0>();
    }
    __syncthreads();
    const u16* tile = loaded + buffer * LOADED;
    const u16* gradients = tile + BORDERED * ROW;
#pragma unroll 1
    for (int step = 0; step < PIXELS / 16 / BY_PIXEL; step++) {
      // Both operands are read transposed: the product sums over pixels, and pixels are the rows in memory.
      const int m = step * BY_PIXEL + part;
      u32 a[4];
      load_four_transposed(a, gradients + place(m * 16 + lane % 8 + lane / 16 * 8, (outs + of_out) / 8 + lane / 8 % 2));
      const int q = m * 16 + lane % 16;
      const u16* under = tile + (q / TW * SIDE + q % TW + of_tap / 3 * SIDE + of_tap % 3) * ROW + lane / 16 * 8;
#pragma unroll
      for (int i = 0; i < TAPS; i++) {
#pragma unroll
        for (int j = 0; j < TILES; j += 2) {
          u32 b[4];
          load_four_transposed(b, under + (i / 3 * SIDE + i % 3) * ROW + j * 8);
          multiply(total[i][j], a, b[0], b[1]);
          multiply(total[i][j + 1], a, b[2], b[3]);
        }
      }
    }
    __syncthreads();
  }

#if JOINED
  float* joined = (float*)loaded;  // what the parts have so far; one after the other, for the same sums every time
#pragma unroll 1
  for (int turn = 0; turn < BY_PIXEL; turn++) {
    if (part == turn)
#pragma unroll
      for (int i = 0; i < TAPS; i++)
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
          for (int e = 0; e < 4; e++) {
            float* at = joined + ((((warp / BY_PIXEL) * TAPS + i) * TILES + j) * 4 + e) * 32 + lane;
            total[i][j][e] += turn ? *at : 0.0f;
            *at = total[i][j][e];
          }
    __syncthreads();
  }
  if (part != BY_PIXEL - 1) return;
#endif
  float* to = sums + (long)blockIdx.x * 9 * C * C;
#pragma unroll
  for (int i = 0; i < TAPS; i++)
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int o = outs + of_out + group + 8 * half;
        *(float2*)(to + ((long)o * 9 + of_tap + i) * C + j * 8 + 2 * member) = make_float2(total[i][j][2 * half], total[i][j][2 * half + 1]);
      }
}
#endif
