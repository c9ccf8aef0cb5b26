// The ways a picture comes in: chosen, dropped, pasted, taken, or one of the examples.

import { Problem } from "./server.js";

const find = (id) => document.getElementById(id);

// take({blob, name}) for a picture, complain(problem) for anything else
export function openIntake(take, complain) {
  const takeFile = async (file) => {
    const { name, type } = file;
    if (type && !type.startsWith("image/")) {
      return complain(new Problem(`${name} is no picture, but ${type}. Choose a JPEG, PNG or WebP file.`));
    }
    try {
      take({ blob: new Blob([await file.arrayBuffer()], { type }), name }); // kept, whatever becomes of the file
    } catch {
      complain(new Problem(`${name} cannot be read. Is it a folder, or very large?`));
    }
  };
  openFiles(takeFile);
  openDrop(takeFile, complain);
  openPaste(takeFile, complain);
  openCamera(take, complain);
}

function openFiles(takeFile) {
  find("choose").addEventListener("click", () => find("file").click());
  for (const input of [find("file"), find("capture")]) {
    input.addEventListener("change", () => {
      if (input.files.length) takeFile(input.files[0]);
      input.value = ""; // so that the same file can be chosen again
    });
  }
}

function openDrop(takeFile, complain) {
  let depth = 0; // enter and leave come for every element on the way
  const mark = (change) => {
    depth = Math.max(0, depth + change);
    document.body.classList.toggle("dropping", depth > 0);
  };
  addEventListener("dragenter", () => mark(1));
  addEventListener("dragleave", () => mark(-1));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    mark(-depth);
    const [file] = event.dataTransfer.files;
    if (file) takeFile(file);
    else complain(new Problem("That was no file. Save the picture first, then drop the file here."));
  });
}

function openPaste(takeFile, complain) {
  addEventListener("paste", (event) => {
    if (event.target instanceof HTMLInputElement || event.target instanceof HTMLTextAreaElement) return;
    const [file] = event.clipboardData.files;
    if (file) takeFile(file);
    else complain(new Problem("There is no picture to paste. Copy a picture, then paste it here."));
  });
}

function openCamera(take, complain) {
  const dialog = find("camera"), video = find("view");
  find("take").addEventListener("click", async () => {
    // Browsers hand out the camera on this machine and over https only; elsewhere a phone can still take a picture.
    if (!navigator.mediaDevices?.getUserMedia) return find("capture").click();
    try {
      video.srcObject = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch (error) {
      const why = error.name === "NotAllowedError" ? "it may not be used here" : "none was found, or it is in use";
      return complain(new Problem(`No camera: ${why}.`));
    }
    dialog.showModal();
    await video.play();
  });
  find("shoot").addEventListener("click", () => {
    const canvas = new OffscreenCanvas(video.videoWidth, video.videoHeight);
    canvas.getContext("2d").drawImage(video, 0, 0);
    dialog.close();
    const taking = canvas.convertToBlob({ type: "image/jpeg", quality: 0.92 });
    taking.then((blob) => take({ blob, name: "The picture taken" }));
  });
  find("close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => {
    for (const track of video.srcObject?.getTracks() ?? []) track.stop();
    video.srcObject = null;
  });
}

// Buttons with pictures to try; returns them.
export function showExamples(examples, take) {
  const box = find("examples");
  const buttons = examples.map(({ label, picture }) => {
    const button = document.createElement("button"), image = new Image();
    button.type = "button";
    button.title = label;
    button.setAttribute("aria-label", `Example: ${label}`);
    image.src = picture;
    image.alt = "";
    image.addEventListener("load", () => image.classList.toggle("pixels", image.naturalWidth <= 64));
    button.append(image);
    button.addEventListener("click", () => take({ blob: asBlob(picture), name: label, button }));
    return button;
  });
  box.replaceChildren(...buttons);
  box.hidden = buttons.length === 0;
  return buttons;
}

// The page may not fetch data: addresses.
function asBlob(address) {
  const [head, text] = address.split(",");
  const bytes = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  return new Blob([bytes], { type: head.slice(5).split(";")[0] });
}
