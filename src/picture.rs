//! Pictures made of rectangles, lines and fixed-width text: SVG for pages, PNG for chats. Both look alike, and neither
//! needs a font on the machine.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use anyhow::Result;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use font8x8::{BASIC_FONTS, UnicodeFonts};

use crate::destination::Destination;
use crate::failure::Failure;

/// Red, green, blue.
pub(crate) type Rgb = [u8; 3];

/// Pixels from left to right.
pub(crate) const WIDTH: u32 = 880;
const BACKGROUND: Rgb = [255, 255, 255];
/// Text and axes.
pub(crate) const INK: Rgb = [40, 40, 40];
/// Grids.
pub(crate) const FAINT: Rgb = [200, 200, 200];
/// Series, in order.
pub(crate) const SERIES: [Rgb; 4] = [[31, 119, 180], [214, 104, 24], [44, 140, 60], [148, 84, 160]];

/// What can be drawn on. The origin is the upper left corner.
pub(crate) trait Canvas {
    /// A filled rectangle.
    fn rectangle(&mut self, x: u32, y: u32, width: u32, height: u32, color: Rgb);
    /// A line through all points.
    fn line(&mut self, points: &[(u32, u32)], color: Rgb);
    /// Text of eight-pixel characters with its upper left corner here.
    fn text(&mut self, x: u32, y: u32, text: &str);
}

/// Draws to a file; its ending says how.
///
/// # Errors
/// An ending that is neither `.svg` nor `.png`; a file that cannot be written.
pub(crate) fn write(file: &Path, height: u32, draw: impl FnOnce(&mut dyn Canvas)) -> Result<()> {
    let ending = file.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    let bytes = match ending.as_str() {
        "svg" => {
            let mut canvas = Svg::new(height);
            draw(&mut canvas);
            canvas.finish().into_bytes()
        }
        "png" => {
            let mut canvas = Raster::new(height);
            draw(&mut canvas);
            canvas.finish()?
        }
        _ => return Err(unknown_ending(file)),
    };
    let mut out = Destination::create_binary(file)?;
    let written = out.write_all(&bytes).map_err(Into::into);
    out.witness().judge(written)?;
    out.keep().map(drop)
}

/// The error of a file whose ending is not one of a picture.
pub(crate) fn unknown_ending(file: &Path) -> anyhow::Error {
    Failure::invalid(format!("{}: a picture ends in .svg or .png", file.display()))
}

/// SVG as text.
struct Svg {
    out: String,
}

impl Svg {
    fn new(height: u32) -> Self {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"monospace\" font-size=\"13\">"
        );
        let mut svg = Self { out };
        svg.rectangle(0, 0, WIDTH, height, BACKGROUND);
        svg
    }

    fn finish(mut self) -> String {
        self.out.push_str("</svg>\n");
        self.out
    }
}

impl Canvas for Svg {
    fn rectangle(&mut self, x: u32, y: u32, width: u32, height: u32, [r, g, b]: Rgb) {
        // writing to a String cannot fail
        let _ = writeln!(
            self.out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"#{r:02x}{g:02x}{b:02x}\"/>"
        );
    }

    fn line(&mut self, points: &[(u32, u32)], [r, g, b]: Rgb) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x},{y}")).collect();
        let _ = writeln!(
            self.out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"#{r:02x}{g:02x}{b:02x}\" stroke-width=\"2\"/>",
            points.join(" ")
        );
    }

    fn text(&mut self, x: u32, y: u32, text: &str) {
        let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let [r, g, b] = INK;
        let _ = writeln!(
            self.out,
            "<text x=\"{x}\" y=\"{}\" fill=\"#{r:02x}{g:02x}{b:02x}\" xml:space=\"preserve\">{escaped}</text>",
            y + 9
        );
    }
}

/// Pixels, row by row.
struct Raster {
    pixels: Vec<Rgb>,
    height: u32,
}

impl Raster {
    fn new(height: u32) -> Self {
        Self { pixels: vec![BACKGROUND; (WIDTH * height) as usize], height }
    }

    /// The picture as PNG: one header, one compressed block of rows, one end mark.
    fn finish(self) -> Result<Vec<u8>> {
        let mut rows = ZlibEncoder::new(Vec::new(), Compression::default());
        for row in self.pixels.chunks(WIDTH as usize) {
            // filter 0: bytes as they are
            rows.write_all(&[0])?;
            rows.write_all(row.as_flattened())?;
        }
        let mut header = Vec::with_capacity(13);
        header.extend(WIDTH.to_be_bytes());
        header.extend(self.height.to_be_bytes());
        // eight bits a channel, true colour, the one compression and filter there is, not interlaced
        header.extend([8, 2, 0, 0, 0]);
        let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
        chunk(&mut out, *b"IHDR", &header);
        chunk(&mut out, *b"IDAT", &rows.finish()?);
        chunk(&mut out, *b"IEND", &[]);
        Ok(out)
    }
}

fn chunk(out: &mut Vec<u8>, name: [u8; 4], data: &[u8]) {
    let mut sum = flate2::Crc::new();
    sum.update(&name);
    sum.update(data);
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(name);
    out.extend(data);
    out.extend(sum.sum().to_be_bytes());
}

impl Canvas for Raster {
    fn rectangle(&mut self, x: u32, y: u32, width: u32, height: u32, color: Rgb) {
        for row in y..(y + height).min(self.height) {
            for column in x..(x + width).min(WIDTH) {
                self.pixels[(row * WIDTH + column) as usize] = color;
            }
        }
    }

    fn line(&mut self, points: &[(u32, u32)], color: Rgb) {
        if let [(x, y)] = points {
            self.rectangle(*x, *y, 2, 2, color);
        }
        for pair in points.windows(2) {
            let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
            // so many dots that none is more than a pixel from the next
            let n = x0.abs_diff(x1).max(y0.abs_diff(y1)).max(1);
            for i in 0..=n {
                let between = |from: u32, to: u32| {
                    (f64::from(from) + (f64::from(to) - f64::from(from)) * f64::from(i) / f64::from(n)).round() as u32
                };
                self.rectangle(between(x0, x1), between(y0, y1), 2, 2, color);
            }
        }
    }

    fn text(&mut self, x: u32, y: u32, text: &str) {
        for (nth, character) in text.chars().enumerate() {
            // the font has ASCII
            let Some(glyph) = BASIC_FONTS.get(character).or_else(|| BASIC_FONTS.get('?')) else { continue };
            for (dy, row) in (0_u32..).zip(glyph) {
                for dx in (0..8).filter(|dx| row & (1 << dx) != 0) {
                    self.rectangle(x + nth as u32 * 8 + dx, y + dy, 1, 1, INK);
                }
            }
        }
    }
}
