// The picture as it was given, and the part of it that the model sees.

export function showGiven(at, picture, preprocessing) {
  if (!picture) {
    at("given").replaceChildren();
    at("given-is").textContent = "This browser cannot show pictures of this kind; the model can read it.";
    return;
  }
  const { address, width, height } = picture, part = partSeen(preprocessing, width, height);
  const image = new Image(), frame = document.createElement("span");
  image.src = address;
  image.alt = "The picture as you gave it";
  image.classList.toggle("pixels", width <= 64);
  frame.className = "frame";
  frame.hidden = part.whole;
  for (const side of ["left", "top", "width", "height"]) frame.style.setProperty(side, `${100 * part[side]}%`);
  at("given").style.setProperty("--aspect", width / height);
  at("given").replaceChildren(image, frame);
  const [high, wide] = preprocessing.size_px;
  const which = part.whole ? "all of it" : "the part in the frame";
  at("given-is").textContent = `${width} \u00d7 ${height} pixels. The model sees ${which}, at ${wide} \u00d7 ${high}.`;
}

// As shares of width and height. The centre of the model's proportions, or all of it, squeezed: see Preprocessing.
export function partSeen({ crop, crop_fraction, skip_fitting, size_px: [high, wide] }, width, height) {
  const fits = skip_fitting && width === wide && height === high;
  if (fits || crop === "squash" || crop === "letterbox") return { left: 0, top: 0, width: 1, height: 1, whole: true };
  if (crop === "squash-centre") return centred(crop_fraction, crop_fraction);
  const pitch = crop_fraction * Math.min(width / wide, height / high); // pixels given for one seen
  return centred((pitch * wide) / width, (pitch * high) / height);
}

function centred(width, height) {
  return { left: (1 - width) / 2, top: (1 - height) / 2, width, height, whole: width > 0.999 && height > 0.999 };
}
