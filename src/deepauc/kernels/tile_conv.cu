// A 3x3 convolution by tiles (`tile.cuh`), or its transpose, with what a norm needs behind it.
//
// Macros: ROWS of 16 pixels a warp multiplies at a time; FLIP, MOMENTS, NORM, EXTRA, ACTIVATED, ELU are told at the kernel.

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
