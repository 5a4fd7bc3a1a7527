// What kernels share on Hopper, on the host: in place of hopper.cuh. Products are there as soon as
// they are asked for.
static char emu_anchor;
// The low half of an address says all within a program's own data.
static inline u32 shared_address(const void*p){return (u32)(size_t)p;}
static inline char*emu_at(u32 address){return &emu_anchor+(int)(address-shared_address(&emu_anchor));}
struct EmuBarrier{u64 arrivals:12,left:12,phase:8,bytes:32;};
static_assert(sizeof(EmuBarrier)==8);
static EmuBarrier&emu_barrier(u32 b){return *(EmuBarrier*)emu_at(b);}
static void barrier_init(u32 b,u32 n){emu_barrier(b)={n,n,0,0};}
static void barriers_made(){}
static void emu_end_phase(EmuBarrier&x){if(x.left==0&&x.bytes==0){emu_moves++;x.left=x.arrivals;x.phase++;}}
static void barrier_arrive(u32 b){auto&x=emu_barrier(b);x.left--;emu_end_phase(x);}
static void barrier_arrive_at(u32 b,u32 block){auto&x=*(EmuBarrier*)emu_there(emu_at(b),block);x.left--;emu_end_phase(x);}
static void barrier_arrive_expecting(u32 b,u32 bytes){auto&x=emu_barrier(b);x.left--;x.bytes+=bytes;emu_end_phase(x);}
// A map says where rows of 16-bit elements lie, how many and how long they are, and how many a box has,
// of how many slices.
struct TensorMap{const char*at;u64 rows,columns,box_rows,box_slices;};
#define __grid_constant__
static void emu_copy_box(u32 to,const TensorMap&map,u32 inner,u32 outer,u32 barrier,u32 block){
for(u32 r=0;r<map.box_rows;r++)for(u32 k=0;k<64;k++){u32 at=to+r*128+k*2;at^=(at>>7&7)<<4;u16 x=0;
if(outer+r<map.rows&&inner+k<map.columns)memcpy(&x,map.at+((outer+r)*map.columns+inner+k)*2,2);memcpy(emu_there(emu_at(at),block),&x,2);}
auto&b=*(EmuBarrier*)emu_there(emu_at(barrier),block);b.bytes-=map.box_rows*128;emu_end_phase(b);}
static void copy_box(u32 to,const TensorMap&map,u32 inner,u32 outer,u32 barrier){emu_copy_box(to,map,inner,outer,barrier,emu_rank);}
// A map of one slice has two axes, and one of several three: a copy must name as many.
static void copy_slices(u32 to,const TensorMap&map,u32 row,u32 slice,u32 barrier){if(map.box_slices<2)emu_refuse("a copy of several slices by a map of one");
for(u32 s=0;s<map.box_slices;s++)emu_copy_box(to+s*(u32)map.box_rows*128,map,(slice+s)*64,row,barrier,emu_rank);}
static void copy_slices_once(u32 to,const TensorMap&map,u32 row,u32 slice,u32 barrier){copy_slices(to,map,row,slice,barrier);}
static void copy_box_to(u32 to,const TensorMap&map,u32 inner,u32 outer,u32 barrier,u16 blocks){for(u32 block=0;block<emu_cluster;block++)if(blocks>>block&1)emu_copy_box(to,map,inner,outer,barrier,block);}
static void store_box(const TensorMap&map,u32 inner,u32 outer,u32 from){
for(u32 r=0;r<map.box_rows;r++)for(u32 k=0;k<64;k++){u32 at=from+r*128+k*2;at^=(at>>7&7)<<4;
if(outer+r<map.rows&&inner+k<map.columns)memcpy((char*)map.at+((outer+r)*map.columns+inner+k)*2,emu_at(at),2);}}
static void stores_end(){}
static void stores_have_read(){}
static void stores_done(){}
static u32 cluster_rank(){return emu_rank;}
static void store_shared(u32 to,const Bytes16&x){*(Bytes16*)emu_at(to)=x;}
static Bytes16 load_shared(u32 from){return *(Bytes16*)emu_at(from);}
// Each lane writes the row that it names: column lane%8 of matrix lane/8.
static void store_transposed(u32 to,u32 a,u32 b,u32 c,u32 d){unsigned w=emu_w(),l=emu_l(),mine[4]={a,b,c,d};memcpy(fragments[w][l],mine,sizeof mine);warpbar[w].wait(32);
for(u32 e=0;e<8;e++){u16 x=(u16)(fragments[w][e*4+l%8/2][l/8]>>l%2*16);memcpy(emu_at(to)+e*2,&x,2);}warpbar[w].wait(32);}
static void barrier_arrive_copied(u32 b){emu_copies_done();barrier_arrive(b);}
static void barrier_wait(u32 b,u32 parity){emu_moves++;while((emu_barrier(b).phase&1)==parity)emu_yield();}
static void copy_shared_if(bool there,u32 to,const void*from){emu_copy(emu_at(to),from,there);}
template<int N>static void registers_up(){}
template<int N>static void registers_down(){}
template<int N>static void threads_meet(u32 number){groupbar[32+number].wait(N);}
template<int N>static void threads_arrive(u32 number){auto&b=groupbar[32+number];emu_moves++;if(++b.arrived==N){b.arrived=0;b.gen++;}}
static void cluster_meet(){clusterbar.wait(blockDim.x*emu_cluster);}
static void store_shared(u32 to,float x){memcpy(emu_at(to),&x,4);}
static void store_shared(u32 to,float x,float y){float v[2]={x,y};memcpy(emu_at(to),v,8);}
static void store_cluster(u32 to,u32 block,const float*x){memcpy(emu_there(emu_at(to),block),x,16);}
template<int N>static void load_cluster(float(&x)[N],u32 from,u32 block){memcpy(x,emu_there(emu_at(from),block),sizeof x);}
static u64 matrix_at(u32 address){return address>>4;}
static u64 columns_at(u32 address,u32 apart){return address>>4|(u64)(apart>>4)<<32;}
static void products_begin(){}
static void products_end(){}
static void products_see_writes(){}
template<int LEFT>static void products_done_but(){}
template<int LEFT,int N>static void products_done_but(float(&)[N]){}
// Chunks of 16 bytes are swapped by the row of 128 bytes that they are in.
static float emu_element(u32 address){address^=(address>>7&7)<<4;T16 x;memcpy(&x,emu_at(address),2);return widen(x);}
static float emu_row_element(u64 m,u32 row,u32 k){return emu_element((u32)m*16+row/8*1024+row%8*128+k*2);}
static float emu_column_element(u64 m,u32 k,u32 n){return emu_element((u32)m*16+n/64*(u32)(m>>32)*16+k/8*1024+k%8*128+n%64*2);}
static u32 emu_row(u32 i){return threadIdx.x/32%4*16+threadIdx.x%32/4+i/2%2*8;}
static u32 emu_column(u32 i){return i/4*8+threadIdx.x%4*2+i%2;}
template<int N>static void multiply_add_tile(float(&sum)[N],u64 a,u64 b,u32 add){
for(int i=0;i<N;i++){double s=0;for(u32 k=0;k<16;k++)s+=(double)emu_row_element(a,emu_row(i),k)*emu_row_element(b,emu_column(i),k);sum[i]=(float)((add?sum[i]:0)+s);}}
template<int N>static void multiply_add_tile(float(&sum)[N],u32 a0,u32 a1,u32 a2,u32 a3,u64 b,u32 add){
unsigned w=emu_w(),l=emu_l(),mine[4]={a0,a1,a2,a3};memcpy(fragments[w][l],mine,sizeof mine);warpbar[w].wait(32);
float a[2][16];for(u32 h=0;h<2;h++)for(u32 k=0;k<16;k++){u32 pair=fragments[w][l/4*4+k%8/2][k/8*2+h];u16 bits=(u16)(pair>>k%2*16);T16 x;memcpy(&x,&bits,2);a[h][k]=widen(x);}
for(int i=0;i<N;i++){double s=0;for(u32 k=0;k<16;k++)s+=(double)a[i/2%2][k]*emu_column_element(b,k,emu_column(i));sum[i]=(float)((add?sum[i]:0)+s);}
warpbar[w].wait(32);}
template<class T>static u32 emu_pair(u32 a,u32 b,bool less){u32 r=0;for(int h=0;h<2;h++){T x,y,z;x.bits=(u16)(a>>16*h);y.bits=(u16)(b>>16*h);
narrow(z,less?widen(x)-widen(y):widen(x)*widen(y));r|=(u32)z.bits<<16*h;}return r;}
template<class T>static u32 multiply_pair(u32 a,u32 b){return emu_pair<T>(a,b,false);}
template<class T>static u32 subtract_pair(u32 a,u32 b){return emu_pair<T>(a,b,true);}
static u32 __byte_perm(u32 a,u32 b,u32 places){u64 all=(u64)b<<32|a;u32 r=0;for(int i=0;i<4;i++)r|=(u32)(all>>(places>>4*i&7)*8&255)<<8*i;return r;}
