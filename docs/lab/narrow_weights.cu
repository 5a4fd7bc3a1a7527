// How fast products of few rows stream weights of 16, 8 and 4 bits that lie in the order of mma's
// left fragments: a lane loads 16 bytes, widens them in registers, and multiplies at once.
#include <cuda_runtime.h>
#include <cstdio>
#include <cstring>
#include <cstdlib>
#include <vector>
#include <cmath>
#include <algorithm>
typedef unsigned u32; typedef unsigned long long u64; typedef unsigned short u16; typedef unsigned char u8;
#define CK(x) do{ auto e_=(x); if(e_!=cudaSuccess){ printf("%s:%d %s\n",__FILE__,__LINE__,cudaGetErrorString(e_)); exit(1);} }while(0)
#define DEV __device__ __forceinline__
DEV uint4 ldw(const void* p){ uint4 r; asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];":"=r"(r.x),"=r"(r.y),"=r"(r.z),"=r"(r.w):"l"(p)); return r; }
DEV void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1){
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
   :"+f"(c[0]),"+f"(c[1]),"+f"(c[2]),"+f"(c[3]):"r"(a[0]),"r"(a[1]),"r"(a[2]),"r"(a[3]),"r"(b0),"r"(b1)); }
DEV u32 mul2(u32 a,u32 b){ u32 r; asm("mul.rn.bf16x2 %0,%1,%2;":"=r"(r):"r"(a),"r"(b)); return r; }
DEV u32 fma2(u32 a,u32 b,u32 c){ u32 r; asm("fma.rn.bf16x2 %0,%1,%2,%3;":"=r"(r):"r"(a),"r"(b),"r"(c)); return r; }
// Four codes of e4m3 in bytes -> two pairs of bf16: pair 0 is of bytes 0 and 2, pair 1 of bytes 1 and 3.
DEV void widen8(u32 x, u32& p0, u32& p1){
  const u32 K = 0x7b807b80; // 2^120
  u32 lo = x << 8;
  p0 = mul2((lo & 0x80008000u) | ((lo & 0x7f007f00u) >> 4), K);
  p1 = mul2((x & 0x80008000u) | ((x & 0x7f007f00u) >> 4), K);
}
// Eight nibbles -> four pairs of bf16 q - 8.
DEV u32 nib(u32 x){ return fma2((x & 0x000f000fu) | 0x43004300u, 0x3f803f80u, 0xc308c308u); } // (128+q) - 136
// BITS of a weight. A load of a lane holds KS k16-steps: 1, 2 or 4.
template <int BITS> struct Of { static constexpr int KS = 16 / BITS; };
template <int BITS> DEV void frag(const uint4& w, int s, u32 (&a)[4]){
  if constexpr (BITS==16){ a[0]=w.x;a[1]=w.y;a[2]=w.z;a[3]=w.w; }
  else if constexpr (BITS==8){ u32 x=s?w.z:w.x, y=s?w.w:w.y; widen8(x,a[0],a[1]); widen8(y,a[2],a[3]); }
  else { u32 x = s==0?w.x:s==1?w.y:s==2?w.z:w.w; a[0]=nib(x); a[1]=nib(x>>4); a[2]=nib(x>>8); a[3]=nib(x>>12); }
}
// y[m][n] = sum x[m][k] w[n][k] * scale. Tiles of 16 columns; WARPS warps share k. x [M][K] bf16 in shared memory,
// each warp's own slice. Scales: BITS 8: one a column; BITS 4: one a column and 128 of k, bf16 pairs by tile.
template <int BITS, int NT, int WARPS, int U, int M>
__global__ void __launch_bounds__(WARPS*32) product(const uint4* __restrict__ w, const u16* __restrict__ x, const float* __restrict__ scales, float* __restrict__ y, u16* __restrict__ yb, int N, int K, int what){
  asm volatile("griddepcontrol.launch_dependents;");
  constexpr int KS = Of<BITS>::KS, KL = KS*16; // k of a load
  extern __shared__ __align__(16) u32 sx[]; // words of x in the order of fragments; of one row, for all columns
  __shared__ float part[2][WARPS][NT][128];
  const int lane = threadIdx.x%32, warp = threadIdx.x/32;
  const int loads = K/KL/WARPS; // of a warp and tile
  const int tiles = N/16;
  uint4 held[U];
  int tile = blockIdx.x;
  auto at = [&](int tile, int i){ return w + ((u64)tile*(K/KL) + warp*loads + i)*32 + lane; };
  // U divides loads
  if (tile < tiles){
#pragma unroll
    for (int u=0;u<U;++u) held[u] = ldw(at(tile,u)); }
  if (!(what&1)) asm volatile("griddepcontrol.wait;":::"memory");
  // x in the order of fragments: for k16-step s, m tile n: lane's pair of words.
  constexpr int SM = M==1 ? 1 : NT*8;
  for (int i=threadIdx.x;i<K/2*SM;i+=WARPS*32){
    // word i: step = i/(8*SM), rest
    int step = i/(8*SM), r=i%(8*SM), n=r/64, q=r%64, l=q/2, h=q%2; int m=n*8+l/4, k=step*16+(l%4)*2+h*8;
    u32 v=0; if (m<M) v = *(const u32*)(x+(u64)m*K+k); sx[i]=v; }
  __syncthreads();
  int flip=0;
  for (; tile<tiles; tile+=gridDim.x, flip^=1){
    float sum[NT][4]; 
#pragma unroll
    for (int n=0;n<NT;++n) for(int j=0;j<4;++j) sum[n][j]=0;
    float grp[NT][4];
#pragma unroll
    for (int n=0;n<NT;++n) for(int j=0;j<4;++j) grp[n][j]=0;
#pragma unroll 1
    for (int i=0;i<loads;i+=U){
#pragma unroll
      for (int u=0;u<U;++u){
        uint4 cur = held[u];
        int nx = i+u+U; int nt = tile;
        if (nx>=loads){ nx-=loads; nt=tile+gridDim.x; }
        if (nt<tiles) held[u]=ldw(at(nt,nx));
#pragma unroll
        for (int s=0;s<KS;++s){
          u32 a[4]; frag<BITS>(cur,s,a);
          const int step=(warp*loads+i+u)*KS+s;
#pragma unroll
          for (int n=0;n<NT;++n){
            const uint2 b = *(const uint2*)(sx + step*(8*SM)+n*64+(M==1?lane%4:lane)*2);
            if constexpr (BITS==4) mma(grp[n],a,b.x,b.y); else mma(sum[n],a,b.x,b.y);
          }
        }
        if constexpr (BITS==4) if (u%2==1){ // 128 of k
          const int g=(warp*loads+i+u)/2;
          const float2 sc = *(const float2*)(scales + ((u64)tile*(K/128)+g)*16 + (lane/4)*2);
#pragma unroll
          for (int n=0;n<NT;++n){ sum[n][0]+=sc.x*grp[n][0]; sum[n][1]+=sc.x*grp[n][1]; sum[n][2]+=sc.y*grp[n][2]; sum[n][3]+=sc.y*grp[n][3];
            grp[n][0]=grp[n][1]=grp[n][2]=grp[n][3]=0; }
        }
      }
    }
#pragma unroll
    for (int n=0;n<NT;++n) *(float4*)&part[flip][warp][n][lane*4]=make_float4(sum[n][0],sum[n][1],sum[n][2],sum[n][3]);
    __syncthreads();
    for (int i=threadIdx.x;i<NT*128;i+=WARPS*32){
      int n=i/128,q=i%128; float v=0;
#pragma unroll
      for (int k=0;k<WARPS;++k) v+=part[flip][k][n][q];
      int l=q/4,j=q%4; int row=l/4+(j/2)*8, m=n*8+(l%4)*2+j%2; int col=tile*16+row;
      if (m<M){ if (BITS==8) v*=scales[col]; y[(u64)m*N+col]=v; if (yb) { u32 b=__float_as_uint(v); yb[(u64)m*N+col]=(u16)((b+0x7fff+((b>>16)&1))>>16);} }
    }
  }
}

// ---- through a ring in shared memory: bulk copies of T tiles' slices of 64 of k
DEV u32 sa(const void* p){ return (u32)__cvta_generic_to_shared(p); }
DEV void binit(u32 b,u32 n){ asm volatile("mbarrier.init.shared.b64 [%0], %1;"::"r"(b),"r"(n)); }
DEV void bexp(u32 b,u32 n){ asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"::"r"(b),"r"(n):"memory"); }
DEV void barr(u32 b){ asm volatile("mbarrier.arrive.shared.b64 _, [%0];"::"r"(b):"memory"); }
DEV void bwait(u32 b,u32 ph){ asm volatile("{.reg .pred p; L: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @p bra D; bra L; D:}"::"r"(b),"r"(ph):"memory"); }
DEV void bulk(u32 to,const void* from,u32 n,u32 b){ asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"::"r"(to),"l"(from),"r"(n),"r"(b):"memory"); }
DEV float h2f(u16 h){ float r; asm("cvt.f32.f16 %0,%1;":"=f"(r):"h"(h)); return r; }
// x lies in the order of fragments: [slice][step 4][n tile][lane][2] words for M > 1, [slice][step][4 lanes][2] for one row.
template <int BITS,int NT,int T,int SL,int M,int RING,int KW=8>
__global__ void __launch_bounds__(KW*32+32) ring(const u8* __restrict__ w, const u8* __restrict__ xf, const u16* __restrict__ sc, float* __restrict__ y, int N,int K){
  asm volatile("griddepcontrol.launch_dependents;");
  constexpr int XB = M==1 ? 128 : NT*1024; // of a slice
  constexpr int WB = 16*64*BITS/8, SB = BITS==4 ? 32*SL/2 : 0; // of a slice and tile; scales of a tile in a slot
  extern __shared__ __align__(128) u8 smem[];
  __shared__ u64 bars[32]; __shared__ float part[KW][T][NT][128];
  const int tiles=N/16, share=tiles/gridDim.x, odd=tiles%gridDim.x, first=share*blockIdx.x+min((int)blockIdx.x,odd), cnt=share+((int)blockIdx.x<odd);
  if (cnt==0) { asm volatile("griddepcontrol.wait;":::"memory"); return; }
  const int passes=(cnt+T-1)/T, most=(cnt+passes-1)/passes, chunks=K/64/SL;
  const int slot_bytes=most*(SL*WB+SB)+SL*XB, slots=min(16,RING/slot_bytes);
  const u32 b0=sa(bars), base=sa(smem);
  if (threadIdx.x==0){ for(int i=0;i<16;++i){ binit(b0+i*8,1); binit(b0+128+i*8,KW);} asm volatile("fence.mbarrier_init.release.cluster;":::"memory"); }
  __syncthreads();
  const int lane=threadIdx.x%32, warp=threadIdx.x/32;
  auto begin=[&](int p){ return first+cnt*p/passes; };
  if (warp==KW){
    if (lane==0){
      int all=passes*chunks; int pass=0,chunk=0; u32 slot=0,ph=0;
      auto ofw=[&](){ int t0=begin(pass),u=begin(pass+1)-t0; u32 bar=b0+slot*8; bwait(b0+128+slot*8,ph^1); bexp(bar,u*(SL*WB+SB)+SL*XB);
        u32 to=base+slot*slot_bytes; for(int t=0;t<u;++t){ bulk(to+t*SL*WB,w+((u64)(t0+t)*(K/64)+chunk*SL)*WB,SL*WB,bar); if(SB) bulk(to+most*SL*WB+t*SB,sc+((u64)(t0+t)*(K/128)+chunk*SL/2)*16,SB,bar); } };
      auto ofx=[&](u32 slot,int chunk){ bulk(base+slot*slot_bytes+most*(SL*WB+SB),xf+(u64)chunk*SL*XB,SL*XB,b0+slot*8); };
      auto adv=[&](){ if(++slot==(u32)slots){slot=0;ph^=1;} if(++chunk==chunks){chunk=0;++pass;} };
      int ahead=min(all,slots);
      for(int i=0;i<ahead;++i,adv()) ofw();
      asm volatile("griddepcontrol.wait;":::"memory");
      for(int i=0,c=0;i<ahead;++i){ ofx(i,c); if(++c==chunks)c=0; }
      for(int i=ahead;i<all;++i,adv()){ ofw(); ofx(slot,chunk); }
    } else asm volatile("griddepcontrol.wait;":::"memory");
    return;
  }
  asm volatile("griddepcontrol.wait;":::"memory");
  u32 slot=0,ph=0;
  for(int pass=0;pass<passes;++pass){
    const int t0=begin(pass),u=begin(pass+1)-t0;
    float sum[T][NT][4];
#pragma unroll
    for(int i=0;i<T*NT*4;++i)(&sum[0][0][0])[i]=0;
#pragma unroll 1
    for(int c=0;c<chunks;++c){
      bwait(b0+slot*8,ph);
      const u8* s=smem+slot*slot_bytes;
#pragma unroll
      for(int sl0=0;sl0<SL;sl0+=KW){
        const int sl=sl0+warp;
        const u32* xs=(const u32*)(s+most*(SL*WB+SB)+sl*XB);
        uint2 b[4][NT];
#pragma unroll
        for(int k=0;k<4;++k)
#pragma unroll
          for(int n=0;n<NT;++n) b[k][n]= M==1 ? *(const uint2*)(xs+k*8+lane%4*2) : *(const uint2*)(xs+(k*NT+n)*64+lane*2);
#pragma unroll
        for(int t=0;t<T;++t) if(t<u){
          const uint4* ws=(const uint4*)(s+t*SL*WB+sl*WB)+lane;
          if constexpr(BITS==4){
            uint4 v=ws[0]; float g[NT][4];
#pragma unroll
            for(int n=0;n<NT;++n) g[n][0]=g[n][1]=g[n][2]=g[n][3]=0;
#pragma unroll
            for(int k=0;k<4;++k){ u32 a[4]; frag<4>(v,k,a);
#pragma unroll
              for(int n=0;n<NT;++n) mma(g[n],a,b[k][n].x,b[k][n].y); }
            const u32 sv=*(const u32*)(s+most*SL*WB+t*SB+(sl/2)*32+(lane/4)*4); const float s0=h2f((u16)sv),s1=h2f((u16)(sv>>16));
#pragma unroll
            for(int n=0;n<NT;++n){ sum[t][n][0]+=s0*g[n][0];sum[t][n][1]+=s0*g[n][1];sum[t][n][2]+=s1*g[n][2];sum[t][n][3]+=s1*g[n][3]; }
          } else {
            constexpr int KS=16/BITS;
#pragma unroll
            for(int l=0;l<4/KS;++l){ uint4 v=ws[l*32];
#pragma unroll
              for(int k=0;k<KS;++k){ u32 a[4]; frag<BITS>(v,k,a);
#pragma unroll
                for(int n=0;n<NT;++n) mma(sum[t][n],a,b[l*KS+k][n].x,b[l*KS+k][n].y); } }
          }
        }
      }
      __syncwarp();
      if(lane==0) barr(b0+128+slot*8);
      if(++slot==(u32)slots){slot=0;ph^=1;}
    }
    asm volatile("bar.sync 1, %0;"::"n"(KW*32):"memory");
#pragma unroll
    for(int t=0;t<T;++t)
#pragma unroll
      for(int n=0;n<NT;++n) *(float4*)&part[warp][t][n][lane*4]=make_float4(sum[t][n][0],sum[t][n][1],sum[t][n][2],sum[t][n][3]);
    asm volatile("bar.sync 1, %0;"::"n"(KW*32):"memory");
    for(int i=threadIdx.x;i<u*NT*128;i+=KW*32){ int t=i/(NT*128),r=i%(NT*128),n=r/128,q=r%128; float v=0;
#pragma unroll
      for(int k=0;k<KW;++k) v+=part[k][t][n][q];
      int l=q/4,j=q%4,row=l/4+(j/2)*8,m=n*8+(l%4)*2+j%2,col=(t0+t)*16+row; if(BITS==8) v*=h2f(sc[col]); if(m<M) y[(u64)m*N+col]=v; }
  }
}
static u16 bf(float f){ u32 b; memcpy(&b,&f,4); return (b+0x7fff+((b>>16)&1))>>16; }
static float fb(u16 h){ u32 b=(u32)h<<16; float f; memcpy(&f,&b,4); return f; }
static float e4(u8 c){ int s=c>>7,e=c>>3&15,m=c&7; float v = e? ldexpf(1+m/8.f,e-7):ldexpf(m/8.f,-6); return s?-v:v; }
static cudaStream_t st; static int SMS;
struct P{ void* w; float* sc; int N,K; };
template <int BITS,int NT,int WARPS,int U,int M> void launch(const P& p,const u16* x,float* y,u16* yb,int what,int perSM){
  auto k=product<BITS,NT,WARPS,U,M>; int sh=p.K*(M==1?1:NT*8)*2; 
  static bool set=false; if(!set){ CK(cudaFuncSetAttribute(k,cudaFuncAttributeMaxDynamicSharedMemorySize,200*1024)); set=true; }
  cudaLaunchConfig_t c{}; c.gridDim=std::min(p.N/16,SMS*perSM); c.blockDim=WARPS*32; c.dynamicSmemBytes=sh; c.stream=st;
  cudaLaunchAttribute a[1]; a[0].id=cudaLaunchAttributeProgrammaticStreamSerialization; a[0].val.programmaticStreamSerializationAllowed=1; c.attrs=a; c.numAttrs=1;
  CK(cudaLaunchKernelEx(&c,k,(const uint4*)p.w,x,(const float*)p.sc,y,yb,p.N,p.K,what)); }
// packs a host matrix of codes
static std::vector<u8> pack(int BITS,const std::vector<int>& code,int N,int K){ // code: bf16 bits, e4m3 byte, or nibble
  int KS=16/BITS,KL=KS*16; std::vector<u8> out((size_t)N*K*BITS/8);
  for(int t=0;t<N/16;++t)for(int l=0;l<K/KL;++l)for(int lane=0;lane<32;++lane){ u8* o=&out[(((size_t)t*(K/KL)+l)*32+lane)*16]; u32* ow=(u32*)o; ow[0]=ow[1]=ow[2]=ow[3]=0;
    for(int s=0;s<KS;++s)for(int r=0;r<4;++r)for(int h=0;h<2;++h){ int row=lane/4+(r%2)*8, k=l*KL+s*16+(lane%4)*2+(r/2)*8+h; u32 c=code[(size_t)(t*16+row)*K+k];
      if(BITS==16) ow[r]|=c<<(16*h);
      else if(BITS==8){ int word=s*2+r/2, byte=(r%2)+2*h; ow[word]|=c<<(8*byte); }
      else ow[s]|=c<<(4*r+16*h); } }
  return out; }
template <int BITS,int NT,int WARPS,int U,int M> double check(int perSM){
  int N=512,K=4096; std::vector<int> code((size_t)N*K); std::vector<float> val(code.size()); std::vector<float> sc(BITS==4?(size_t)N*K/128:N); 
  for(auto&s:sc)s=0.5f+(rand()%100)/100.f;
  for(int n=0;n<N;++n)for(int k=0;k<K;++k){ size_t i=(size_t)n*K+k; if(BITS==16){ float v=(rand()%2001-1000)/1000.f; code[i]=bf(v); val[i]=fb(code[i]); } else if(BITS==8){ int c; do c=rand()%256; while((c&127)==127); code[i]=c; val[i]=e4(c)*sc[n]; } else { code[i]=rand()%16; int t=n/16,g=k/128,r=n%16; val[i]=(code[i]-8)*sc[((size_t)t*(K/128)+g)*16+(r%8)*2+r/8]; } }
  auto pk=pack(BITS,code,N,K); std::vector<u16> x((size_t)M*K); for(auto&v:x)v=bf((rand()%2001-1000)/1000.f);
  P p; p.N=N;p.K=K; CK(cudaMalloc(&p.w,pk.size())); CK(cudaMemcpy(p.w,pk.data(),pk.size(),cudaMemcpyHostToDevice)); CK(cudaMalloc(&p.sc,sc.size()*4)); CK(cudaMemcpy(p.sc,sc.data(),sc.size()*4,cudaMemcpyHostToDevice));
  u16* dx; float* dy; CK(cudaMalloc(&dx,x.size()*2)); CK(cudaMemcpy(dx,x.data(),x.size()*2,cudaMemcpyHostToDevice)); CK(cudaMalloc(&dy,(size_t)M*N*4));
  launch<BITS,NT,WARPS,U,M>(p,dx,dy,nullptr,0,perSM); CK(cudaDeviceSynchronize()); std::vector<float> y((size_t)M*N); CK(cudaMemcpy(y.data(),dy,y.size()*4,cudaMemcpyDeviceToHost));
  double worst=0; for(int m=0;m<M;++m)for(int n=0;n<N;n+=7){ double a=0,b=0; for(int k=0;k<K;++k){ double v=(double)val[(size_t)n*K+k]*fb(x[(size_t)m*K+k]); a+=v;b+=fabs(v);} worst=std::max(worst,fabs(a-y[(size_t)m*N+n])/b);} 
  cudaFree(p.w);cudaFree(p.sc);cudaFree(dx);cudaFree(dy); return worst; }
static u8* pool; 
template <int BITS,int NT,int WARPS,int U,int M> void bench(int perSM){
  double e=check<BITS,NT,WARPS,U,M>(perSM);
  struct S{int N,K;} shapes[4]={{6144,4096},{4096,4096},{24576,4096},{4096,12288}};
  u16* x; float* y; u16* yb; CK(cudaMalloc(&x,32*12288*2*2)); CK(cudaMemset(x,0,32*12288*4)); CK(cudaMalloc(&y,(size_t)32*24576*4)); CK(cudaMalloc(&yb,(size_t)32*24576*2)); float* sc; CK(cudaMalloc(&sc,(size_t)24576*96*4)); CK(cudaMemset(sc,0,(size_t)24576*96*4));
  cudaEvent_t a,b; cudaEventCreate(&a);cudaEventCreate(&b);
  printf("bits %2d rows %2d warps %2d U %2d perSM %d err %.1e:",BITS,M,WARPS,U,perSM,e);
  auto time=[&](auto f){ cudaGraph_t g; cudaGraphExec_t ex; CK(cudaStreamBeginCapture(st,cudaStreamCaptureModeThreadLocal)); f(); CK(cudaStreamEndCapture(st,&g)); CK(cudaGraphInstantiate(&ex,g,0)); for(int i=0;i<3;++i)CK(cudaGraphLaunch(ex,st)); std::vector<float> t; for(int i=0;i<15;++i){ cudaEventRecord(a,st); CK(cudaGraphLaunch(ex,st)); cudaEventRecord(b,st); CK(cudaEventSynchronize(b)); float ms; cudaEventElapsedTime(&ms,a,b); t.push_back(ms);} std::sort(t.begin(),t.end()); cudaGraphExecDestroy(ex); cudaGraphDestroy(g); return t[t.size()/2]; };
  const size_t all=(size_t)64<<30; 
  for(auto s:shapes){ size_t bytes=(size_t)s.N*s.K*BITS/8; int reps=36; float ms=time([&]{ size_t off=0; for(int i=0;i<reps;++i){ P p{pool+off,sc,s.N,s.K}; launch<BITS,NT,WARPS,U,M>(p,x,y,yb,0,perSM); off+=bytes; } }); printf(" %5.2fus(%2.0f%%)",ms/reps*1e3,bytes*reps/ms*1e3/3.118e12*100); (void)all; }
  float ms=time([&]{ size_t off=0; for(int i=0;i<36;++i) for(auto s:shapes){ P p{pool+off,sc,s.N,s.K}; launch<BITS,NT,WARPS,U,M>(p,x,y,yb,0,perSM); off+=(size_t)s.N*s.K*BITS/8; } });
  double bytes=36.0*(6144.*4096+4096.*4096+24576.*4096+4096.*12288)*BITS/8; printf(" | layers %.3f ms %.2f TB/s\n",ms,bytes/ms/1e9); fflush(stdout);
  cudaFree(x);cudaFree(y);cudaFree(yb);cudaFree(sc); }

static u16 hf(float f){ /* of small exact values */ u32 b; memcpy(&b,&f,4); int e=(b>>23&255)-112; return (b>>16&0x8000)|(e<<10)|((b>>13)&0x3ff); }
static float fh(u16 h){ int e=(h>>10)&31; float v=ldexpf(1+(h&1023)/1024.f,e-15); return h&0x8000?-v:v; }
template <int BITS,int NT,int T,int SL,int M,int RING,int KW=8> void launchr(const void*w,const void*xf,const void*sc,float*y,int N,int K,int grid){
  auto k=ring<BITS,NT,T,SL,M,RING,KW>; static bool set=false; if(!set){ CK(cudaFuncSetAttribute(k,cudaFuncAttributeMaxDynamicSharedMemorySize,RING)); set=true; }
  cudaLaunchConfig_t c{}; c.gridDim=std::min(grid,N/16); c.blockDim=KW*32+32; c.dynamicSmemBytes=RING; c.stream=st;
  cudaLaunchAttribute a[1]; a[0].id=cudaLaunchAttributeProgrammaticStreamSerialization; a[0].val.programmaticStreamSerializationAllowed=1; c.attrs=a; c.numAttrs=1;
  CK(cudaLaunchKernelEx(&c,k,(const u8*)w,(const u8*)xf,(const u16*)sc,y,N,K)); }
template <int BITS,int NT,int T,int SL,int M,int RING,int KW=8> void benchr(){
  // check
  int N=800,K=4096; std::vector<int> code((size_t)N*K); std::vector<float> val(code.size()); std::vector<u16> sc(BITS==4?(size_t)N*K/128:N); for(auto&v:sc)v=hf(0.5f+(rand()%64)/64.f);
  for(int n=0;n<N;++n)for(int k=0;k<K;++k){ size_t i=(size_t)n*K+k; if(BITS==16){ float v=(rand()%2001-1000)/1000.f; code[i]=bf(v); val[i]=fb(code[i])*fh(sc[n])*0+fb(code[i]); } else if(BITS==8){ int c; do c=rand()%256; while((c&127)==127); code[i]=c; val[i]=e4(c)*fh(sc[n]); } else { code[i]=rand()%16; int t=n/16,g=k/128,r=n%16; val[i]=(code[i]-8)*fh(sc[((size_t)t*(K/128)+g)*16+(r%8)*2+r/8]); } }
  auto pk=pack(BITS,code,N,K); std::vector<u16> x((size_t)M*K); for(auto&v:x)v=bf((rand()%2001-1000)/1000.f);
  std::vector<u32> xf((size_t)K/16*(M==1?8:NT*64)); for(int s=0;s<K/16;++s) for(int n=0;n<(M==1?1:NT);++n) for(int l=0;l<(M==1?4:32);++l) for(int h=0;h<2;++h){ int m=M==1?0:n*8+l/4,k=s*16+(l%4)*2+h*8; u32 v=m<M? x[(size_t)m*K+k]|(u32)x[(size_t)m*K+k+1]<<16:0; xf[M==1? s*8+l*2+h : (s*NT+n)*64+l*2+h]=v; }
  void*dw,*dx,*ds; float*dy; CK(cudaMalloc(&dw,pk.size()));CK(cudaMemcpy(dw,pk.data(),pk.size(),cudaMemcpyHostToDevice));CK(cudaMalloc(&dx,xf.size()*4));CK(cudaMemcpy(dx,xf.data(),xf.size()*4,cudaMemcpyHostToDevice));CK(cudaMalloc(&ds,sc.size()*2));CK(cudaMemcpy(ds,sc.data(),sc.size()*2,cudaMemcpyHostToDevice));CK(cudaMalloc(&dy,(size_t)32*24576*4));
  launchr<BITS,NT,T,SL,M,RING,KW>(dw,dx,ds,dy,N,K,20); CK(cudaDeviceSynchronize()); std::vector<float> y((size_t)M*N); CK(cudaMemcpy(y.data(),dy,y.size()*4,cudaMemcpyDeviceToHost)); double worst=0; for(int m=0;m<M;++m)for(int n=0;n<N;n+=7){ double a=0,b=0; for(int k=0;k<K;++k){ double v=(double)val[(size_t)n*K+k]*fb(x[(size_t)m*K+k]); a+=v;b+=fabs(v);} worst=std::max(worst,fabs(a-y[(size_t)m*N+n])/b);} 
  struct S{int N,K;} shapes[4]={{6144,4096},{4096,4096},{24576,4096},{4096,12288}};
  void* xb; CK(cudaMalloc(&xb,1<<20)); CK(cudaMemset(xb,0,1<<20)); void* sb; CK(cudaMalloc(&sb,(size_t)24576*96*2)); CK(cudaMemset(sb,0,(size_t)24576*96*2));
  cudaEvent_t a,b; cudaEventCreate(&a);cudaEventCreate(&b);
  printf("ring bits %2d rows %2d T %d SL %d ring %dK warps %d err %.1e:",BITS,M,T,SL,RING>>10,KW,worst);
  auto time=[&](auto f){ cudaGraph_t g; cudaGraphExec_t ex; CK(cudaStreamBeginCapture(st,cudaStreamCaptureModeThreadLocal)); f(); CK(cudaStreamEndCapture(st,&g)); CK(cudaGraphInstantiate(&ex,g,0)); for(int i=0;i<3;++i)CK(cudaGraphLaunch(ex,st)); std::vector<float> t; for(int i=0;i<15;++i){ cudaEventRecord(a,st); CK(cudaGraphLaunch(ex,st)); cudaEventRecord(b,st); CK(cudaEventSynchronize(b)); float ms; cudaEventElapsedTime(&ms,a,b); t.push_back(ms);} std::sort(t.begin(),t.end()); cudaGraphExecDestroy(ex); cudaGraphDestroy(g); return t[t.size()/2]; };
  for(auto s:shapes){ size_t bytes=(size_t)s.N*s.K*BITS/8; int reps=36; float ms=time([&]{ size_t off=0; for(int i=0;i<reps;++i){ launchr<BITS,NT,T,SL,M,RING,KW>(pool+off,xb,sb,dy,s.N,s.K,SMS); off+=bytes; } }); printf(" %5.2fus(%2.0f%%)",ms/reps*1e3,bytes*reps/ms*1e3/3.118e12*100); }
  float ms=time([&]{ size_t off=0; for(int i=0;i<36;++i) for(auto s:shapes){ launchr<BITS,NT,T,SL,M,RING,KW>(pool+off,xb,sb,dy,s.N,s.K,SMS); off+=(size_t)s.N*s.K*BITS/8; } });
  double bytes=36.0*(6144.*4096+4096.*4096+24576.*4096+4096.*12288)*BITS/8; printf(" | layers %.3f ms %.2f TB/s\n",ms,bytes/ms/1e9); fflush(stdout);
  cudaFree(dw);cudaFree(dx);cudaFree(ds);cudaFree(dy);cudaFree(xb);cudaFree(sb); }
int main(){ CK(cudaStreamCreate(&st)); cudaDeviceProp pr; cudaGetDeviceProperties(&pr,0); SMS=pr.multiProcessorCount; printf("%s %d SMs\n",pr.name,SMS); CK(cudaMalloc(&pool,(size_t)16<<30)); CK(cudaMemset(pool,0x35,(size_t)16<<30));
#define R(...) benchr<__VA_ARGS__>()
  R(16,1,3,8,1,100*1024); R(8,1,3,8,1,100*1024); R(4,1,3,8,1,100*1024);
  R(8,1,3,16,1,86*1024,16); R(8,1,2,16,1,92*1024,16); R(4,1,3,16,1,86*1024,16); R(4,1,2,16,1,92*1024,16); R(4,1,3,32,1,86*1024,16);
  R(8,1,3,8,1,100*1024,4); R(4,1,3,8,1,100*1024,4);
  R(8,1,3,16,8,86*1024,16); R(4,1,3,16,8,86*1024,16); R(4,1,2,16,8,92*1024,16);
  R(8,2,2,16,16,150*1024,16); R(4,2,2,16,16,150*1024,16); R(8,4,2,16,32,140*1024,16); R(4,4,2,16,32,140*1024,16); R(8,4,2,8,32,100*1024); R(4,4,2,8,32,100*1024);
}
