"use strict";

const PRODUCTS = [
  { id: "watering-can", name: "Copper watering can", category: "Watering", price: 34.5, article: "W-1107", material: "Copper", stock: 6 },
  { id: "steel-can", name: "Steel watering can", category: "Watering", price: 21.9, article: "W-1102", material: "Galvanised steel", stock: 14 },
  { id: "rain-barrel", name: "Rain barrel", category: "Watering", price: 89, article: "W-2040", material: "Oak", stock: 3 },
  { id: "hose", name: "Garden hose", category: "Watering", price: 27.4, article: "W-3015", material: "Rubber", stock: 0 },
  { id: "trowel", name: "Hand trowel", category: "Tools", price: 9.8, article: "T-0301", material: "Steel and ash", stock: 22 },
  { id: "weeder", name: "Root weeder", category: "Tools", price: 7.6, article: "T-0318", material: "Steel", stock: 0 },
  { id: "rake", name: "Bamboo rake", category: "Tools", price: 14.2, article: "T-0450", material: "Bamboo", stock: 9 },
  { id: "shears", name: "Hedge shears", category: "Tools", price: 26.75, article: "T-0522", material: "Carbon steel", stock: 5 },
  { id: "dibber", name: "Wooden dibber", category: "Tools", price: 8.4, article: "T-0299", material: "Beech", stock: 17 },
  { id: "clay-pot", name: "Clay pot", category: "Pots", price: 4.35, article: "P-0101", material: "Terracotta", stock: 120 },
  { id: "glazed-pot", name: "Glazed pot", category: "Pots", price: 12.9, article: "P-0144", material: "Stoneware", stock: 31 },
  { id: "seed-tray", name: "Seed tray", category: "Pots", price: 3.95, article: "P-0007", material: "Recycled pulp", stock: 0 },
  { id: "beans", name: "Runner bean seeds", category: "Seeds", price: 2.4, article: "S-0881", material: "Seeds", stock: 64 },
  { id: "kale", name: "Black kale seeds", category: "Seeds", price: 2.15, article: "S-0877", material: "Seeds", stock: 48 },
];

const VOUCHERS = { SPROUT10: 0.1, FERN25: 0.25 };

const byId = id => PRODUCTS.find(product => product.id === id);
const money = amount => `$${amount.toFixed(2)}`;
const stockOf = product => (product.stock ? `${product.stock} in stock` : "Sold out");
