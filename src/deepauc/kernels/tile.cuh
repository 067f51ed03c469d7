// What the kernels of 3x3 convolutions of few channels (stride 1, padding 1, NHWC, bfloat16) have in common; it stands
// before each of them, `tile_conv.cu` and `tile_gradient.cu`, after the macros that `tile_conv.py` gives.
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
// multiprocessor; EACH tiles a block, one after the other.

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
