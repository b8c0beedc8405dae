"""Chromium shows each frame of a smart cut after a seek to it, as of an encoded clip."""

import base64
from pathlib import Path

import numpy as np
import pytest

from tests.browser import Browser, chromium
from tests.curate.cut.smart.test_smart_cut import GROUPS, copied_in
from tests.cutting import clips_of, cut_smart
from tests.media import read_number, write_video

# What is drawn before the frame is presented is the one before it, of encoded clips too.
SEEK = """async ([clip, times]) => {
  const bytes = Uint8Array.from(atob(clip), (c) => c.charCodeAt(0));
  const video = document.createElement("video");
  video.muted = true;
  video.src = URL.createObjectURL(new Blob([bytes], {type: "video/mp4"}));
  await new Promise((done, fail) => {
    video.onloadeddata = done;
    video.onerror = () => fail(new Error(video.error.message));
  });
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
  const drawing = canvas.getContext("2d", {willReadFrequently: true});
  const pictures = [];
  for (const time of times) {
    const presented = new Promise((done) => video.requestVideoFrameCallback(done));
    await new Promise((done) => { video.onseeked = done; video.currentTime = time; });
    await presented;
    drawing.drawImage(video, 0, 0);
    const pixels = drawing.getImageData(0, 0, canvas.width, canvas.height).data;
    let text = "";
    for (let at = 0; at < pixels.length; at += 4) {
      text += String.fromCharCode(pixels[at], pixels[at + 1], pixels[at + 2]);
    }
    pictures.push(btoa(text));
  }
  return [canvas.width, canvas.height, pictures];
}"""


def test_chromium_shows_each_frame_after_a_seek(tmp_path: Path) -> None:
    where = chromium()
    if where is None:
        pytest.skip("needs Chromium or Chrome")
    path, page_file = write_video(tmp_path / "a.mp4", (65, 35), options=GROUPS), tmp_path / "page.html"
    page_file.write_text("<!doctype html><title>clips</title><link rel=icon href=data:,>")
    (ours,), (encoded,) = cut_smart(path, [(31, 96)]), clips_of(path, [(31, 96)])
    assert 0 < copied_in(ours) < 65
    order = np.random.default_rng(0).permutation(65).tolist()
    with Browser(where) as browser, browser.opened(page_file) as page:
        for clip in (encoded, ours):
            data = base64.b64encode(clip.data).decode()
            width, height, shown = page.evaluate(SEEK, [data, [(at + 0.5) / 25 for at in order]])
            pictures = [
                np.frombuffer(base64.b64decode(text), np.uint8).reshape(height, width, 3) for text in shown
            ]
            assert [read_number(picture) - 31 for picture in pictures] == order
