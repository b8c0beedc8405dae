"""Scenes of the demo, as graphs of FFmpeg's filters; the source of each takes a size and a rate."""

_EARTH = (
    "perlin=octaves=6:persistence=0.55:xscale=12:yscale=6:tscale=0.05:random_mode=seed:random_seed=5,format=gbrp,"
    "curves=r='0/0 0.48/0.1 0.52/0.8 0.7/0.2 1/1':g='0/0.1 0.48/0.4 0.52/0.8 0.7/0.5 1/1'"
    ":b='0/0.4 0.48/0.8 0.52/0.5 0.7/0.15 1/1'"
)
_MIRRORED = (
    "crop=iw/2:ih/2,split[{0}a][{0}b];[{0}b]hflip[{0}c];[{0}a][{0}c]hstack,"
    "split[{0}d][{0}e];[{0}e]vflip[{0}f];[{0}d][{0}f]vstack"
)

_CONTRAST = "format=gbrp,curves=all='0.3/0 0.7/1',format=yuv444p"

BLACK = "color=c=black"
TEST_CARD = "smptehdbars"
CLOUDS = (
    "perlin=octaves=6:persistence=0.6:xscale=3:yscale=5:tscale=0.6:random_mode=seed:random_seed=1,format=gbrp,"
    "curves=r='0/0.1 0.45/0.25 1/1':g='0/0.3 0.45/0.5 1/1':b='0/0.6 0.5/0.85 1/1'"
)
EMBERS = (
    "perlin=octaves=5:xscale=6:yscale=6:tscale=0.8:random_mode=seed:random_seed=2,"
    "format=yuv444p,pseudocolor=p=inferno"
)
LAVA = (
    "perlin=octaves=4:xscale=5:yscale=5:tscale=0.8:random_mode=seed:random_seed=7,"
    "format=yuv444p,pseudocolor=p=magma"
)
ALGAE = (
    f"perlin=octaves=4:xscale=4:yscale=6:tscale=0.7:random_mode=seed:random_seed=8,{_CONTRAST},"
    "pseudocolor=p=viridis"
)
INK = (
    f"perlin=octaves=3:xscale=3:yscale=3:tscale=0.7:random_mode=seed:random_seed=3,{_CONTRAST},"
    "pseudocolor=p=turbo"
)
ZOOM = "mandelbrot=start_x=-0.7436:start_y=-0.1318:start_scale=1:end_scale=0.02:end_pts=150:inner=mincol"
SEAHORSES = (
    "mandelbrot=start_x=-1.25066:start_y=0.02012:start_scale=0.2:end_scale=0.003:end_pts=150:inner=mincol,"
    "hue=h=200"
)
PLANET = f"{_EARTH},scroll=h=0.002,v360=e:og:h_fov=160:v_fov=90"
BALLOON = "testsrc2,format=gbrp,scroll=h=0.008,v360=e:ball"
TUNNEL = (
    f"perlin=octaves=3:xscale=9:yscale=5:tscale=0.01:random_mode=seed:random_seed=4,{_CONTRAST},"
    "pseudocolor=p=plasma,scroll=v=0.012,v360=e:sg:pitch=90"
)
CARTOON = "testsrc2"
LENS = "testsrc2,format=gbrp,scroll=h=0.01,v360=e:fisheye"
WHEEL = "colorspectrum,format=gbrp,rotate=t:fillcolor=none"
GLASS = f"testsrc2,format=gbrp,rotate=0.6*t,gblur=1,{_MIRRORED.format('glass')}"
PETALS = (
    "mandelbrot=start_scale=0.3:end_scale=0.1:end_pts=150,format=gbrp,rotate=0.2*t,hue=h=160,"
    f"{_MIRRORED.format('petals')}"
)
RIPPLES = "zoneplate=kx2=60:ky2=60:kt=-8,format=yuv444p,pseudocolor=p=cividis"
SPIRES = "mandelbrot=start_x=-0.1011:start_y=0.9563:start_scale=0.1:end_scale=0.005:end_pts=150:inner=mincol,hue=h=100"
STARS = (
    "color=c=black,format=gray,noise=all_seed=5:alls=100:allf=u,loop=-1:1,setpts=N/FRAME_RATE/TB,"
    "lutyuv=y='if(gt(val,45),255,0)',scale=iw*3:ih*3:flags=neighbor,crop=iw/3:ih/3,scroll=h=0.005:v=0.003,gblur=0.8"
)
RAIN = (
    "color=c=gray,format=gray,noise=all_seed=5:alls=100:allf=u,loop=-1:1,setpts=N/FRAME_RATE/TB,"
    f"scroll=v=-0.03:h=0.004,avgblur=sizeX=1:sizeY=6,{_CONTRAST},pseudocolor=p=cool"
)
COLONY = (
    "life=ratio=0.1:seed=4,format=gbrp,scale=iw*4:ih*4:flags=neighbor,crop=iw/4:ih/4,lagfun=decay=0.9,gblur=1,"
    "format=yuv444p,pseudocolor=p=plasma"
)
BLUR = (
    "gradients=n=6:type=circular:speed=0.04:seed=9"  # without colours of its own it draws others every time
    ":c0=0x1b2a49:c1=0xc98b4a:c2=0x2f6f5e:c3=0x7a2e4d:c4=0xd8c99b:c5=0x30455f"
)


def draw_scene(scene: str, width: int, height: int, fps: int) -> str:
    """Return the graph of a scene in RGB, of any length, in a size and at a rate."""
    source, _, rest = scene.partition(",")
    sized = f"{source}{':' if '=' in source else '='}s={width}x{height}:r={fps}"
    shown = f"fps={fps},settb=1/{fps},scale={width}:{height},setsar=1,format=gbrp"
    return ",".join(filter(None, (sized, rest, shown)))
